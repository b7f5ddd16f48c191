"""Lists that were not made for a test: this machine's files, by hash, and the files of all of Debian, by name.

The second comes from Debian's package contents lists: those that apt keeps here already, else fetched by apt into a
cache of the tests, which changes nothing of the machine. Without it the test fails.
"""

import glob
import itertools
import os
import pathlib
import subprocess
import unittest

import support
from grpc_reflection import ReflectedClient
from rpc_test_case import ABSENT, BATCH_GET, FOUND, PACKED
from support import CACHE_DIR, NOT_FOUND, escape_tsv

BATCH = 4096
CONTENTS_ROWS = 1_500_000
CONTENTS_ROWS_MIN = 1_000_000
APT_TIMEOUT_S = 540


def batches(items, size):
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch


class ListTestCase(support.TestCase):
    """`rows`: key bytes -> (doc id, value), the plain dict that all is held against."""

    def check_all(self, server, table, rows, absent):
        """Looks up every key, and between any two of them one that is absent, in packed batches."""
        self.assertEqual(len(absent), len(rows))
        with ReflectedClient(server.address) as client:
            for batch in batches(zip(rows.items(), absent), BATCH // 2):
                asked, doc_ids, values = [], [], []
                for (key, (doc_id, value)), missing in batch:
                    asked += [key, missing]
                    doc_ids += [doc_id, 0]
                    values += [value, b'']
                reply = client.call(BATCH_GET, table=table, answer_form=PACKED, packed_keys={
                    'data': b''.join(asked), 'lengths': [len(key) for key in asked]})
                columns = reply.packed_rows
                self.assertTrue(reply.complete)
                self.assert_rows(columns.outcomes, bytes([FOUND, ABSENT]) * len(batch), 'outcomes')
                self.assert_rows(list(columns.doc_ids_32), doc_ids, 'doc ids')
                self.assert_rows(list(columns.value_lengths), [len(value) for value in values], 'lengths')
                self.assertTrue(columns.values == b''.join(values), f'values of the keys from {asked[0]!r}')

    def check_command_line(self, server, table, texts, rows, absent_texts):
        """The same by `latchkey batch`: found keys in order, then absent ones."""
        for part in batches(zip(texts, rows.values(), absent_texts), 500_000):
            stdin = b'\n'.join(itertools.chain((text for text, _, _ in part), (text for _, _, text in part)))
            done = self.latchkey('batch', '--server', server.address, '--table', table, stdin=stdin,
                                 code=NOT_FOUND)
            expected = [b'%s\tfound\t%d\t%s' % (escape_tsv(text), doc_id, escape_tsv(value))
                        for text, (doc_id, value), _ in part]
            expected += [escape_tsv(text) + b'\tabsent\t\t' for _, _, text in part]
            self.assert_rows(done.out.split(b'\n')[:-1], expected, 'batch')

    def check_report(self, done, rows_read, rows_stored):
        report = support.parse_json_lines(done.out)[0]
        self.assertEqual((report['rows_read'], report['rows_stored'], report['duplicates_dropped']),
                         (rows_read, rows_stored, rows_read - rows_stored))


class DpkgTest(ListTestCase):
    """The MD5 lists that dpkg keeps of every installed file, read as they are."""

    def test_every_file_by_its_hash(self):
        lists = sorted(glob.glob('/var/lib/dpkg/info/*.md5sums'))
        lines = [line for path in lists for line in pathlib.Path(path).read_bytes().splitlines()]
        self.assertGreater(len(lines), 1000, 'this machine has hardly any packages')
        rows = {}
        for ordinal, line in enumerate(lines):
            digits, path = line.split(b'  ', 1)
            rows.setdefault(bytes.fromhex(digits.decode()), (ordinal, path))
        done = self.latchkey('build', '--data', self.data, '--table', 'files', '--format', 'lines',
                             '--key-kind', 'hex', '--value-column', 'rest', '--duplicates', 'first', '--json',
                             *lists)
        self.check_report(done, len(lines), len(rows))
        absent = [self.random.randbytes(16) for _ in rows]
        server = self.start()
        self.check_all(server, 'files', rows, absent)
        texts = [key.hex().encode() for key in rows]
        self.check_command_line(server, 'files', texts, rows, [key.hex().encode() for key in absent])
        self.latchkey('verify', '--data', self.data, '--table', 'files')
        print(f'{len(lines)} files of {len(lists)} packages, {len(rows)} hashes', flush=True)


class ContentsTest(ListTestCase):
    """File paths as text keys, and the packages that have them as values."""

    def test_every_path(self):
        rows = {}
        for path, packages in read_contents(contents_lists()):
            if path not in rows:
                rows[path] = len(rows), packages
            if len(rows) == CONTENTS_ROWS:
                break
        self.assertGreaterEqual(len(rows), CONTENTS_ROWS_MIN, 'the contents lists are too short')
        source = self.folder / 'contents.tsv'
        with open(source, 'wb') as out:
            out.writelines(escape_tsv(path) + b'\t' + escape_tsv(packages) + b'\n'
                           for path, (_, packages) in rows.items())
        done = self.latchkey('build', '--data', self.data, '--table', 'contents', '--format', 'tsv',
                             '--key-kind', 'text', '--value-column', '2', '--json', source)
        source.unlink()
        self.check_report(done, len(rows), len(rows))
        absent = [self.near_miss(path, rows) for path in rows]
        server = self.start()
        self.check_all(server, 'contents', rows, absent)
        self.check_command_line(server, 'contents', rows, rows, absent)
        self.latchkey('verify', '--data', self.data, '--table', 'contents')
        print(f'{len(rows)} paths', flush=True)

    def near_miss(self, path, rows):
        """A path that is almost this one, and not in the list."""
        changed = self.random.choice((b'/' + path, path + b'~', path.upper() + b'.'))
        while changed in rows:
            changed += b'~'
        return changed


def contents_lists():
    """Debian's contents lists, smallest last; AssertionError if there are none to be had."""
    cache = CACHE_DIR / 'contents'
    with support.cache_lock('contents'):
        for folder in ('/var/lib/apt/lists', cache):
            found = lists_in(folder)
            # Those of updates alone would be too short.
            if sum(os.path.getsize(path) for path in found) > 10 << 20:
                return found
        fetch_contents(cache)
        return lists_in(cache)


def lists_in(folder):
    found = [path for path in glob.glob(f'{folder}/*Contents-*') if 'udeb' not in path]
    return sorted(found, key=os.path.getsize, reverse=True)


def fetch_contents(folder):
    """Has apt fetch the contents lists of the machine's own sources, and nothing else, into `folder`."""
    (folder / 'partial').mkdir(parents=True, exist_ok=True)
    target = 'Acquire::IndexTargets::deb::Contents-deb'
    options = [f'Dir::State::lists={folder}',
               'APT::Sandbox::User=',  # the folder is the caller's
               *(f'Acquire::IndexTargets::deb::{name}::DefaultEnabled=false'
                 for name in ('Packages', 'Translations', 'DEP-11')),
               f'{target}::DefaultEnabled=true',
               f'{target}::KeepCompressed=true',
               f'{target}::MetaKey=$(COMPONENT)/Contents-$(ARCHITECTURE)',
               f'{target}::flatMetaKey=Contents-$(ARCHITECTURE)',
               f'{target}::ShortDescription=Contents-$(ARCHITECTURE)',
               f'{target}::Description=$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Contents (deb)']
    arguments = ['apt-get', 'update', '--quiet=2']
    for option in options:
        arguments += ['-o', option]
    done = support.run(arguments, timeout_s=APT_TIMEOUT_S, stdin=subprocess.DEVNULL)
    # One of several sources may be out of reach: what counts is that the lists are there.
    if not lists_in(folder):
        raise AssertionError(f'apt could not fetch the package contents lists ({done.code}):\n{done.err}')


def read_contents(paths):
    """(path, packages) of each line of the lists; those whose path is not UTF-8 are left out."""
    for path in paths:
        with subprocess.Popen(['/usr/lib/apt/apt-helper', 'cat-file', path],
                              stdout=subprocess.PIPE) as reader:
            for line in reader.stdout:
                name, packages = line.rstrip(b'\n').rsplit(maxsplit=1)
                try:
                    name.decode()
                except UnicodeDecodeError:
                    continue
                yield name, packages
            reader.stdout.close()


if __name__ == '__main__':
    unittest.main()
