"""Tables that somebody has spoilt, and changes that do not fit: each is refused with one exact line.

The same line stands where a table is opened by a command, in the server's status, and in its log.
"""

import json
import re
import shutil
import subprocess
import unittest

import support
from rpc_test_case import ABSENT, BATCH_GET, FOUND, RpcTestCase
from support import FAILURE, LATCHKEY, LATCHKEYD, OK

CONTENTS = [{key: b'one' for key in range(1000)}, {key: b'two' for key in range(500, 2000)}]
CONTENTS.append({**CONTENTS[1], **{key: b'three' for key in range(700, 710)}})
FLAGS = ('--key-kind', 'u64', '--value-column', 'rest')
NEWEST, BASE, OLD = 'g00000003-0.segment', 'g00000002-0.segment', 'g00000001-0.segment'
MANIFEST = 'g00000003.manifest'


def lines(content):
    return b''.join(b'%d %s\n' % row for row in content.items())


def checksum_of_text(error):
    return re.search(r'checksum of the text is ([0-9a-f]{16})', error).group(1)


class SpoiltTestCase(RpcTestCase):
    """A table 't' of three generations, the third of two segments, and a table 'u' like it, both in `whole`."""

    def setUp(self):
        super().setUp()
        self.whole = self.folder / 'whole'
        for table in ('t', 'u'):
            for number, content in enumerate((CONTENTS[0], CONTENTS[1], {key: b'three' for key in range(700, 710)})):
                self.latchkey('build', '--data', self.whole, '--table', table, *FLAGS,
                              *(['--append'] if number == 2 else []), '-', stdin=lines(content))
        self.manifest = json.loads((self.whole / 't' / MANIFEST).read_bytes().rsplit(b'checksum', 1)[0])
        self.newest, self.base = self.manifest['segments']

    def mend_checksum(self, path):
        """As one does who takes the checksum from the error: gives the manifest's last line the right one."""
        done = self.latchkey('verify', '--data', path.parents[1], '--table', path.parent.name, code=FAILURE)
        text = path.read_text().rsplit('checksum ', 1)[0]
        path.write_text(f'{text}checksum {checksum_of_text(done.err)}\n')

    # --- what may be done to generation 3: each returns the error, or a pattern of it ---------------------------

    def edited(self, old, new, count=1):
        """An edit that is not mended."""
        def spoil(folder):
            path = folder / MANIFEST
            text = path.read_text()
            self.assertEqual(text.count(old), count)
            path.write_text(text.replace(old, new))
            stated = text.rsplit('checksum ', 1)[1].strip()
            return re.compile(re.escape(f'{path}: damaged or edited: checksum of the text is ') +
                              f'(?!{stated})[0-9a-f]{{16}}, the last line says {stated}')
        return spoil

    def mended(self, old, new, error, count=1):
        """An edit with the checksum mended."""
        def spoil(folder):
            self.edited(old, new, count)(folder)
            self.mend_checksum(folder / MANIFEST)
            return error.replace('FOLDER', str(folder))
        return spoil

    def cut_manifest(self, size):
        def spoil(folder):
            path = folder / MANIFEST
            path.write_bytes(path.read_bytes()[:size])
            return f'{path}: cut off: no checksum in the last line'
        return spoil

    def manifest_of(self, source, error):
        def spoil(folder):
            shutil.copy(source, folder / MANIFEST)
            return error.replace('FOLDER', str(folder))
        return spoil

    def cut_segment(self, name, size):
        def spoil(folder):
            path = folder / name
            content = path.read_bytes()
            path.write_bytes(content[:size] + bytes(max(0, size - len(content))))
            what, expected = ('header cut off', 4096) if size < 4096 else ('file size', len(content))
            return f'{path}: {what}: expected {expected} bytes, got {size}'
        return spoil

    def missing(self, *names):
        def spoil(folder):
            for name in names:
                (folder / name).unlink()
            return f'cannot open {folder}/{names[0]}: No such file or directory'
        return spoil

    def replaced(self, name, source, error):
        def spoil(folder):
            shutil.copy(source, folder / name)
            return f'{folder}/{name}: {error}'
        return spoil

    def swapped(self):
        def spoil(folder):
            (folder / NEWEST).rename(folder / 'aside')
            (folder / BASE).rename(folder / NEWEST)
            (folder / 'aside').rename(folder / BASE)
            return (f'{folder}/{NEWEST}: not the file that the manifest means: expected segment '
                    f'{self.newest["segment_id"]}, got {self.base["segment_id"]}')
        return spoil

    def replaced_by_a_folder(self):
        def spoil(folder):
            (folder / BASE).unlink()
            (folder / BASE).mkdir()
            return f'cannot read {folder}/{BASE}: Is a directory'
        return spoil

    def ways_to_spoil_the_manifest(self):
        size = (self.whole / 't' / MANIFEST).stat().st_size
        return {
            'a digit of a count': self.edited('"rows": 1500', '"rows": 1600'),
            'a digit of a size': self.edited(f'"file_bytes": {self.newest["file_bytes"]}', '"file_bytes": 409648',
                                             count=2),
            "a segment's name": self.edited(BASE, OLD),
            'the generation': self.edited('"generation": 3', '"generation": 4'),
            'a blank': self.edited('"shard": 0', '"shard":  0'),
            'emptied': self.cut_manifest(0),
            'cut in the middle': self.cut_manifest(size // 2),
            'cut before the checksum': self.cut_manifest(size - 26),
            'without its last byte': self.cut_manifest(size - 1),
            'an older one under its name': self.manifest_of(
                self.whole / 't' / 'g00000002.manifest', f'FOLDER/{MANIFEST}: it is the manifest of generation 2'),
            "another table's": self.manifest_of(
                self.whole / 'u' / MANIFEST, f'FOLDER/{NEWEST}: a segment of another table: expected table '
                f'{self.other_table_id()}, got {self.manifest["table_id"]}'),
        }

    def other_table_id(self):
        return json.loads((self.whole / 'u' / MANIFEST).read_bytes().rsplit(b'checksum', 1)[0])['table_id']

    def ways_to_spoil_the_manifest_and_mend_its_checksum(self):
        in_manifest = f'FOLDER/{MANIFEST}: '
        flip = lambda digits: ('1' if digits[0] == '0' else '0') + digits[1:]
        table_id, seed, segment_id = self.manifest['table_id'], self.manifest['seed'], self.base['segment_id']
        schema = 'key kind u64, {}-bit doc ids, values of any length'
        old_id = json.loads(
            (self.whole / 't' / 'g00000001.manifest').read_bytes().rsplit(b'checksum', 1)[0])['segments'][0]
        not_meant = 'not the file that the manifest means: expected segment {}, got {}'
        return {
            'the generation': self.mended('"generation": 3', '"generation": 7',
                                          in_manifest + 'it is the manifest of generation 7'),
            'the version': self.mended('manifest 1.0', 'manifest 2.0', in_manifest +
                                       "version: this program reads 'latchkey manifest 1.0' and later minor ones, "
                                       "the file is 'latchkey manifest 2.0'"),
            'a count that is text': self.mended('"rows": 1500', '"rows": "many"',
                                                in_manifest + "field 'segments[1].rows': expected a number, got \"many\""),
            'no count': self.mended('"rows": 1500', '"lines": 1500',
                                    in_manifest + "field 'segments[1].rows': expected it to be there"),
            'no JSON': self.mended('"shard": 0', '"shard" 0', in_manifest + 'expected a JSON object'),
            'a name that leads elsewhere': self.mended(
                f'"{BASE}"', f'"../u/{BASE}"',
                in_manifest + "field 'segments[1].file': expected a segment file's name, got "
                '"../u/g00000002-0.segment"'),
            'the name of a file that is not there': self.mended(
                f'"{BASE}"', '"g00000009-0.segment"',
                'cannot open FOLDER/g00000009-0.segment: No such file or directory'),
            "an older segment's name": self.mended(
                f'"{BASE}"', f'"{OLD}"', f'FOLDER/{OLD}: ' + not_meant.format(segment_id, old_id['segment_id'])),
            'the segment id': self.mended(segment_id, flip(segment_id),
                                          f'FOLDER/{BASE}: ' + not_meant.format(flip(segment_id), segment_id)),
            'the table id': self.mended(
                table_id, flip(table_id), f'FOLDER/{NEWEST}: a segment of another table: expected table '
                f'{flip(table_id)}, got {table_id}'),
            'the seed': self.mended(seed, flip(seed),
                                    f'FOLDER/{NEWEST}: hash seed: expected {flip(seed)}, got {seed}'),
            'the schema': self.mended(
                'doc_id=32', 'doc_id=64',
                f'FOLDER/{NEWEST}: schema: expected {schema.format(64)}, got {schema.format(32)}'),
            'the shards': self.mended('"shards": 1', '"shards": 2',
                                      f'FOLDER/{NEWEST}: shard: expected 0 of 2, got 0 of 1'),
        }

    def ways_to_spoil_segments(self):
        size = (self.whole / 't' / BASE).stat().st_size
        another = (f'a segment of another table: expected table {self.manifest["table_id"]}, '
                   f'got {self.other_table_id()}')
        old_id = json.loads(
            (self.whole / 't' / 'g00000001.manifest').read_bytes().rsplit(b'checksum', 1)[0])['segments'][0]
        return {
            'the newest is missing': self.missing(NEWEST),
            'the base is missing': self.missing(BASE),
            'both are missing': self.missing(NEWEST, BASE),
            'emptied': self.cut_segment(BASE, 0),
            'cut within its header': self.cut_segment(NEWEST, 4000),
            'cut behind its header': self.cut_segment(BASE, 4096),
            'cut in the middle': self.cut_segment(NEWEST, size // 2),
            'without its last byte': self.cut_segment(BASE, size - 1),
            'with a byte too much': self.cut_segment(BASE, size + 1),
            'swapped with another of the table': self.swapped(),
            "replaced by the old one": self.replaced(
                BASE, self.whole / 't' / OLD, 'not the file that the manifest means: expected segment '
                f'{self.base["segment_id"]}, got {old_id["segment_id"]}'),
            "the newest replaced by another table's": self.replaced(NEWEST, self.whole / 'u' / NEWEST, another),
            "the base replaced by another table's": self.replaced(BASE, self.whole / 'u' / BASE, another),
            'replaced by text': self.replaced(NEWEST, __file__,
                                              "not a Latchkey segment: no 'LATCHKEY' at offset 0"),
            'replaced by a folder': self.replaced_by_a_folder(),
        }

    # --- where it shows ------------------------------------------------------------------------------------------

    def is_error(self, text, error):
        return error.fullmatch(text) is not None if isinstance(error, re.Pattern) else text == error

    def check_commands(self, ways):
        """Each command that opens the table says the same, and no more."""
        for number, (way, spoil) in enumerate(ways.items()):
            with self.subTest(way):
                data = self.folder / f'offline{number}'
                shutil.copytree(self.whole, data)
                error = spoil(data / 't')
                for command in (['verify'], ['get', '700'], ['inspect'], ['dump']):
                    done = self.latchkey(command[0], '--data', data, '--table', 't', *command[1:], code=FAILURE)
                    self.assertTrue(done.err.startswith('latchkey: ') and done.err.endswith('\n'), done.err)
                    self.assertTrue(self.is_error(done.err[len('latchkey: '):-1], error), f'{error}: {done.err}')
                    self.assertEqual(done.out, b'')
                # Earlier generations are sound, and the table gets well by going back to one.
                if (data / 't' / OLD).exists():
                    self.latchkey('verify', '--data', data, '--table', 't', '--generation', 1)
                    self.latchkey('rollback', '--data', data, '--table', 't', '--to', 1)
                    done = self.latchkey('dump', '--data', data, '--table', 't').out
                    self.assertEqual(len(done.splitlines()), len(CONTENTS[0]))
                shutil.rmtree(data)

    def served(self, client, table):
        """All keys of one reply: generation and content."""
        reply = client.call(BATCH_GET, table=table, keys=[key.to_bytes(8, 'big') for key in range(2000)])
        self.assertTrue(reply.complete)
        self.assertEqual({row.outcome for row in reply.rows}, {FOUND, ABSENT})
        return reply.generation, {key: row.value for key, row in enumerate(reply.rows) if row.outcome == FOUND}

    def errors(self, server):
        out = self.latchkey('status', '--server', server.address, '--json').out
        return {table['table']: table['reload_error'] for table in json.loads(out)['tables']}

    def bring(self, source, target):
        """Brings generation 3 of one folder to another, its manifest last."""
        for name in (BASE, NEWEST, MANIFEST):
            path = source / name
            if (target / name).is_dir():
                (target / name).rmdir()
            if path.is_dir():
                (target / name).mkdir()
            elif path.exists():
                shutil.copy(path, target / f'.{name}')
                (target / f'.{name}').rename(target / name)

    def check_server(self, ways):
        """The old generation goes on serving, with the reason in status and log, until the files are mended."""
        tables, errors = [f't{number:02}' for number in range(len(ways))], {}
        for table in tables:
            (self.data / table).mkdir(parents=True)
            for name in (OLD, 'g00000001.manifest'):
                shutil.copy(self.whole / 't' / name, self.data / table)
        server = self.start()
        client = self.connect(server)
        spoilt = self.folder / 'spoilt'
        for table, (way, spoil) in zip(tables, ways.items(), strict=True):
            shutil.copytree(self.whole / 't', spoilt / table)
            error = spoil(spoilt / table)
            if isinstance(error, re.Pattern):
                error = re.compile(error.pattern.replace(re.escape(str(spoilt)), re.escape(str(self.data))))
            else:
                error = error.replace(str(spoilt), str(self.data))
            errors[table] = error
            self.bring(spoilt / table, self.data / table)

        support.wait_until(lambda: all(self.errors(server).values()), 'an error for each')
        support.wait_until(lambda: all(f' error table not reloaded table={table},' in server.log()
                                       for table in tables), 'the log')
        log = server.log()
        for table, way in zip(tables, ways, strict=True):
            with self.subTest(way):
                said = self.errors(server)[table]
                self.assertTrue(self.is_error(said, errors[table]), f'{errors[table]}: {said}')
                self.assertIn(f' error table not reloaded table={table}, what served before still does: {said}\n',
                              log + '\n')
                self.assertEqual(self.served(client, table), (1, CONTENTS[0]))
                done = self.latchkey('reload', '--server', server.address, '--table', table, code=FAILURE)
                self.assertEqual(done.err, f'latchkey: {said}\n')
        for table in tables:
            self.bring(self.whole / 't', self.data / table)
        for table, way in zip(tables, ways, strict=True):
            with self.subTest(way):
                support.wait_until(lambda t=table: self.served(client, t) == (3, CONTENTS[2]), 'the mended one')
        support.wait_until(lambda: not any(self.errors(server).values()), 'no error')
        server.stop()


class SpoiltFilesTest(SpoiltTestCase):

    def test_manifests_seen_by_commands(self):
        self.check_commands(self.ways_to_spoil_the_manifest())

    def test_manifests_seen_by_a_server(self):
        self.check_server(self.ways_to_spoil_the_manifest())

    def test_manifests_with_a_mended_checksum_seen_by_commands(self):
        self.check_commands(self.ways_to_spoil_the_manifest_and_mend_its_checksum())

    def test_manifests_with_a_mended_checksum_seen_by_a_server(self):
        self.check_server(self.ways_to_spoil_the_manifest_and_mend_its_checksum())

    def test_segments_seen_by_commands(self):
        self.check_commands(self.ways_to_spoil_segments())

    def test_segments_seen_by_a_server(self):
        self.check_server(self.ways_to_spoil_segments())

    def test_figures_that_differ_are_named_with_both_values(self):
        """The manifest's figures of a segment against those in the segment's own header."""
        checksum = self.base['header_checksum']
        wrong_checksum = ('1' if checksum[0] == '0' else '0') + checksum[1:]
        size = self.base['file_bytes']
        for old, new, right, wrong in (('"rows": 1500', '"rows": 1600', '1500', '1600'),
                                       (checksum, wrong_checksum, checksum, wrong_checksum),
                                       (f'"file_bytes": {size}', f'"file_bytes": {size + 1}', str(size),
                                        str(size + 1))):
            with self.subTest(new):
                data = self.folder / 'edited'
                shutil.copytree(self.whole, data)
                path = data / 't' / MANIFEST
                head, found, tail = path.read_text().rpartition(old)  # of the base, which is the last
                self.assertEqual(found, old)
                path.write_text(head + new + tail)
                self.mend_checksum(path)
                done = self.latchkey('verify', '--data', data, '--table', 't', code=FAILURE)
                shutil.rmtree(data)
                self.assertIn(f'{data}/t/{BASE}: ', done.err)
                self.assertRegex(done.err, f'expected {wrong}\\b.*got {right}\\b')


class ServedFilesTest(SpoiltTestCase):
    """What is done to the files of the generation that serves."""

    def setUp(self):
        super().setUp()
        shutil.copytree(self.whole / 't', self.data / 't')
        self.server = self.start()
        self.client = self.connect(self.server)

    def check_serves(self, error):
        support.wait_until(lambda: self.errors(self.server) == {'t': error}, error)
        self.assertEqual(self.served(self.client, 't'), (3, CONTENTS[2]))

    def cannot_start(self, error):
        """A server that starts now has nothing to serve in its place."""
        done = support.run([LATCHKEYD, '--data', self.data, '--listen', '127.0.0.1:0'])
        self.assertEqual(done.code, FAILURE)
        self.assertIn(f' error cannot start: {error}\n', done.err)

    def test_segments_that_go_or_are_replaced(self):
        (self.data / 't' / BASE).unlink()
        self.check_serves('')
        self.cannot_start(f'cannot open {self.data}/t/{BASE}: No such file or directory')
        shutil.copy(self.whole / 'u' / BASE, self.data / 't' / BASE)
        self.check_serves('')
        self.cannot_start(f'{self.data}/t/{BASE}: a segment of another table: expected table '
                          f'{self.manifest["table_id"]}, got {self.other_table_id()}')
        # Nothing is published on top that could not be opened; once it is mended it goes on.
        delta = ['build', '--data', self.data, '--table', 't', *FLAGS, '--append', '-']
        done = self.latchkey(*delta, stdin=b'0 four\n', code=FAILURE)
        self.assertIn(f'{self.data}/t/{BASE}: a segment of another table', done.err)
        self.check_serves('')
        shutil.copy(self.whole / 't' / BASE, self.data / 't' / BASE)
        self.latchkey(*delta, stdin=b'0 four\n')
        support.wait_until(lambda: self.served(self.client, 't') == (4, {**CONTENTS[2], 0: b'four'}), 'the next')

    def test_a_manifest_that_is_edited(self):
        path = self.data / 't' / MANIFEST
        whole = path.read_bytes()
        path.write_bytes(b'')
        self.check_serves(f'{path}: cut off: no checksum in the last line')
        self.cannot_start(f'{path}: cut off: no checksum in the last line')
        path.write_bytes(whole)
        self.check_serves('')


class RefusedChangesTest(support.TestCase):

    def holds_lock(self, process):
        with open('/proc/locks') as locks:
            return any(fields[1:4] == ['FLOCK', 'ADVISORY', 'WRITE'] and fields[4] == str(process.pid)
                       for fields in map(str.split, locks))

    def test_two_appends_at_once(self):
        """The second is refused by the lock's name; the first goes on with its slow pipe, and publishes."""
        table = ['--data', self.data, '--table', 't']
        self.build('t', lines(CONTENTS[0]), *FLAGS)
        first = self.spawn([LATCHKEY, 'build', *table, *FLAGS, '--append', '-'], stdin=subprocess.PIPE,
                           stdout=subprocess.DEVNULL)
        support.wait_until(lambda: self.holds_lock(first), 'the first to take the lock')
        names = sorted(path.name for path in (self.data / 't').iterdir())
        refused = f'latchkey: {self.data}/t/lock is locked: another writer is at work on this table\n'
        for key in range(3):
            first.stdin.write(b'%d slow\n' % key)
            first.stdin.flush()
            for command in (['build', *FLAGS, '--append', self.file('second', b'5 second\n')],
                            ['build', *FLAGS, self.file('third', b'6 third\n')],
                            ['delete', self.file('keys', b'7\n')], ['merge'], ['rollback', '--to', 1],
                            ['gc', '--keep', 1]):
                done = self.latchkey(command[0], *table, *command[1:], code=FAILURE)
                self.assertEqual((done.out, done.err), (b'', refused))
            self.assertEqual(sorted(path.name for path in (self.data / 't').iterdir()), names)
        first.stdin.close()
        self.assertEqual(first.wait(), OK, first.log())
        self.assertEqual(first.log(), '')
        expected = {**CONTENTS[0], **{key: b'slow' for key in range(3)}}
        dumped = {int(key): value for key, _, value in
                  (line.split(b'\t') for line in self.latchkey('dump', *table).out.splitlines())}
        self.assertEqual(dumped, expected)
        report = json.loads(self.latchkey('verify', *table, '--json').out)
        self.assertEqual((report['generation'], report['segments'], report['keys']), (2, 2, 1000))
        self.build('t', b'5 second\n', *FLAGS, '--append')  # now it may

    def test_rows_that_are_not_of_the_tables_kind(self):
        """Key kind, doc ids and values of both stand in the error, of tables of every kind of values."""
        kinds = {'fixed': (['--value-column', 'rest', '--value-width', 2], 'values of 2 bytes'),
                 'bytes': (['--value-column', 'rest'], 'values of any length'), 'none': ([], 'no values')}
        rows = {'none': b'9\n'}
        for table, (flags, what) in kinds.items():
            self.build(table, rows.get(table, b'1 ab\n'), '--key-kind', 'u64', *flags)
            for other, (other_flags, other_what) in kinds.items():
                for key_kind, bits in (('u64', 32), ('text', 32), ('u64', 64)):
                    if (other, key_kind, bits) == (table, 'u64', 32):
                        continue
                    done = self.build(table, rows.get(other, b'2 cd\n'), '--append', '--key-kind', key_kind,
                                      '--doc-id-bits', bits, *other_flags, code=FAILURE)
                    self.assertEqual(
                        done.err, f'latchkey: cannot append: the table has key kind u64, 32-bit doc ids, {what}, '
                        f'the rows have key kind {key_kind}, {bits}-bit doc ids, {other_what}\n')
            report = json.loads(self.latchkey('verify', '--data', self.data, '--table', table, '--json').out)
            self.assertEqual((report['generation'], report['keys']), (1, 1))
        self.assertEqual(sorted(path.name for path in (self.data / 'fixed').iterdir()),
                         ['g00000001-0.segment', 'g00000001.manifest', 'lock'])


class ClockTest(SpoiltTestCase):

    def test_a_clock_that_was_ahead(self):
        """Whatever makes a generation, it is none that is older than the one before."""
        ahead = 4_000_000_000
        path = self.whole / 't' / MANIFEST
        path.write_text(re.sub(r'"created_unix_s": \d+', f'"created_unix_s": {ahead}', path.read_text()))
        self.mend_checksum(path)
        table = ['--data', self.whole, '--table', 't']
        for command in (['build', *FLAGS, '--append', '-'], ['delete', '-'], ['merge'], ['rollback', '--to', 1],
                        ['build', *FLAGS, '-']):
            self.latchkey(command[0], *table, *command[1:], stdin=b'800 new\n' if 'build' in command else b'800\n')
        listed = json.loads(self.latchkey('generations', *table, '--json').out)['generations']
        self.assertEqual([each['generation'] for each in listed], list(range(1, 9)))
        self.assertEqual([each['created_unix_s'] for each in listed[2:]], [ahead] * 6)
        self.assertIn('2096-10-02 07:06:40 UTC', self.latchkey('generations', *table).out.decode())


if __name__ == '__main__':
    unittest.main()
