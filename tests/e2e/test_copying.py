"""A table is shipped by plain copying, in any order, beside the server that goes on serving the old generation."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import threading
import unittest

import grpc

import support
from rpc_test_case import ABSENT, BATCH_GET, FOUND, GET, LIST, RpcTestCase

KEYS = [b'key-%04d' % number for number in range(2000)]
LOG = 'table not reloaded table=t, what served before still does: '


class CopyingTestCase(RpcTestCase):
    """Tables are built in `source`; `data` gets copies only, and has the server."""

    def setUp(self):
        super().setUp()
        self.source = self.folder / 'source'
        self.contents = {}  # of table 't', by generation: values by key

    def make(self, command, *arguments, table='t', stdin=b''):
        return self.latchkey(command, '--data', self.source, '--table', table, *arguments, stdin=stdin)

    def change(self, *, append=None, delete=(), merge=False):
        """The next generation of 't' at the source: all keys anew, or those of `append`, or without `delete`."""
        generation = max(self.contents, default=0) + 1
        content = dict(self.contents.get(generation - 1, {}))
        if merge:
            self.make('merge')
        elif delete:
            content = {key: value for key, value in content.items() if key not in delete}
            self.make('delete', '-', stdin=b''.join(key + b'\n' for key in delete))
        else:
            keys = KEYS if append is None else append
            rows = {key: b'%d of generation %d' % (self.random.randrange(1000), generation) for key in keys}
            content.update(rows)
            self.make('build', '--value-column', 'rest', *(['--append'] if append else []), '-',
                      stdin=b''.join(b'%s %s\n' % row for row in rows.items()))
        self.contents[generation] = content
        return generation

    def rsync(self, *flags):
        done = support.run(['rsync', '-a', *flags, f'{self.source}/', f'{self.data}/'])
        self.assertEqual(done.code, 0, done.err)
        return done.out.decode()

    def names(self, folder=None):
        return sorted(os.listdir((folder or self.source) / 't'))

    def check(self, client, generation=None):
        """All keys, which are of one generation: that one, if it is given. Returns it."""
        reply = client.call(BATCH_GET, table='t', keys=KEYS)
        self.assertTrue(reply.complete)
        content = self.contents[reply.generation]
        rows = {key: (row.outcome, row.value) for key, row in zip(KEYS, reply.rows, strict=True)}
        expected = {key: (FOUND, content[key]) if key in content else (ABSENT, b'') for key in KEYS}
        self.assert_rows(rows, expected, f'generation {reply.generation}')
        self.assertIn(generation, (None, reply.generation))
        return reply.generation

    @contextlib.contextmanager
    def asked_all_the_time(self, server):
        """Beside the block, a client asks without pause; nothing fails, and no generation comes back."""
        stop, wrong, served = threading.Event(), [], []

        def ask():
            client = self.connect(server)
            try:
                while not stop.is_set():
                    generation = self.check(client)
                    if not served or generation != served[-1]:
                        served.append(generation)
            except Exception as error:
                wrong.append(f'{type(error).__name__}: {error}')
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield served
        finally:
            stop.set()
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(served, sorted(served))

    def status(self, server, table='t'):
        """Of a table that the server knows; else nothing."""
        out = self.latchkey('status', '--server', server.address, '--json').out
        return next((each for each in json.loads(out)['tables'] if each['table'] == table), {})

    def status_error(self, server, table='t'):
        return self.status(server, table).get('reload_error')

    def wait_for_error(self, server, client, error, generation):
        """The old generation serves; why the new one does not stands in the status, and in the log."""
        support.wait_until(lambda: self.status_error(server) == error, error)
        self.assertEqual(self.status(server)['generation'], str(generation))
        shown = self.latchkey('status', '--server', server.address).out.decode()
        self.assertIn(f'  a newer generation does not serve: {error}\n', shown)
        # What the server has said takes a moment to be read.
        support.wait_until(lambda: LOG + error in [line.split(' error ', 1)[-1]
                                                   for line in server.log().splitlines()], 'the log')
        self.check(client, generation)

    def wait_for_generation(self, server, client, generation):
        support.wait_until(lambda: self.check(client) == generation, f'generation {generation}')
        support.wait_until(lambda: self.status_error(server) == '', 'no error')
        self.assertEqual(self.status(server)['generation'], str(generation))

    def mapped(self, server):
        """Of the segments that the server maps: file names, with ' (deleted)' if they are, and where they lie."""
        lines = pathlib.Path(f'/proc/{server.pid}/maps').read_text().splitlines()
        return {line.split('/')[-1]: line.split('-')[0] for line in reversed(lines)
                if f'{self.data}/' in line and '.segment' in line}

    def start_with_one(self):
        """A server of generation 1, and a client."""
        self.change()
        self.rsync()
        server = self.start()
        client = self.connect(server)
        self.check(client, 1)
        return server, client

    def missing(self, name):
        return f'cannot open {self.data}/t/{name}: No such file or directory'


class CopyTest(CopyingTestCase):

    def test_the_manifest_first_and_then_segment_by_segment(self):
        server, client = self.start_with_one()
        self.change()
        self.change(append=KEYS[:700])
        self.change(delete=KEYS[500:900])
        segments = ['g00000004-0.segment', 'g00000003-0.segment', 'g00000002-0.segment']  # as they are opened
        with self.asked_all_the_time(server) as served:
            support.run(['cp', self.source / 't' / 'g00000004.manifest', self.data / 't'], check=True)
            for segment in segments:
                self.wait_for_error(server, client, self.missing(segment), 1)
                support.run(['cp', self.source / 't' / segment, self.data / 't'], check=True)
            self.wait_for_generation(server, client, 4)
        self.assertEqual(served, [1, 4])  # 2 and 3 have no manifests there
        self.assertEqual(set(self.mapped(server)), set(segments))

    def test_the_oldest_segment_first(self):
        """The error stays the same until the last of them is there."""
        server, client = self.start_with_one()
        self.change()
        self.change(append=KEYS[:700])
        # At once, as half of it would be an error of its own.
        shutil.copy(self.source / 't' / 'g00000003.manifest', self.folder)
        os.rename(self.folder / 'g00000003.manifest', self.data / 't' / 'g00000003.manifest')
        self.wait_for_error(server, client, self.missing('g00000003-0.segment'), 1)
        shutil.copy(self.source / 't' / 'g00000002-0.segment', self.data / 't')
        # It has looked since then, and says as before.
        done = self.latchkey('reload', '--server', server.address, '--table', 't', code=support.FAILURE)
        self.assertIn(self.missing('g00000003-0.segment'), done.err)
        self.wait_for_error(server, client, self.missing('g00000003-0.segment'), 1)
        self.assertEqual(server.log().count(LOG), 1)
        shutil.copy(self.source / 't' / 'g00000003-0.segment', self.data / 't')
        self.wait_for_generation(server, client, 3)

    def grow(self, make_place):
        """Copies generation 2 with its segment growing from nothing; yields (bytes there, error expected)."""
        server, client = self.start_with_one()
        self.change()
        content = (self.source / 't' / 'g00000002-0.segment').read_bytes()
        path = self.data / 't' / 'g00000002-0.segment'
        shutil.copy(self.source / 't' / 'g00000002.manifest', self.data / 't')
        self.wait_for_error(server, client, self.missing(path.name), 1)
        with self.asked_all_the_time(server) as served, open(path, 'wb', buffering=0) as file:
            written = 0
            for size, error in make_place(file, path, content):
                file.write(content[written:size])
                written = size
                self.wait_for_error(server, client, f'{path}: {error}', 1)
            file.write(content[written:])
            self.wait_for_generation(server, client, 2)
        self.assertEqual(served, [1, 2])

    def test_a_segment_that_grows(self):
        """As cp writes it."""
        def sizes(_file, _path, content):
            for size in (0, 1, 4095):
                yield size, f'header cut off: expected 4096 bytes, got {size}'
            for size in (4096, 70_000, len(content) // 2, len(content) - 1):
                yield size, f'file size: expected {len(content)} bytes, got {size}'
        self.grow(sizes)

    def test_a_segment_that_has_its_size_before_its_content(self):
        """As a copy that allocates beforehand writes it."""
        def sizes(file, _path, content):
            header = content[:4096]
            # The last of the sections, which lie in the order of the file.
            checksums = int.from_bytes(header[120 + 7 * 16:128 + 7 * 16], 'little')
            file.truncate(len(content))
            yield 0, "not a Latchkey segment: no 'LATCHKEY' at offset 0"
            stated = int.from_bytes(content[4088:4096], 'little')
            yield 4088, f'header checksum at offset 4088: expected {stated:016x}, got 0000000000000000'
            for size in (4096, 70_000, len(content) // 2, checksums):
                yield size, f"section 'checksums' at offset {checksums} is damaged"
        self.grow(sizes)

    def test_a_new_table_whose_manifest_comes_first(self):
        """It appears when it is whole, without a restart; the other tables go on."""
        server, client = self.start_with_one()
        for number in range(2):
            self.make('build', '--value-column', 'rest', *(['--append'] if number else []), '-', table='u',
                      stdin=b'a %d\nb%d x\n' % (number, number))
        folder = self.data / 'u'
        folder.mkdir()
        with self.asked_all_the_time(server):
            for name in ('g00000002.manifest', 'g00000002-0.segment', 'g00000001-0.segment'):
                self.assert_fails(grpc.StatusCode.NOT_FOUND, client, GET, table='u', key=b'a')
                self.assertEqual([each.name for each in client.call(LIST).tables], ['t'])
                shutil.copy(self.source / 'u' / name, folder)
                if name != 'g00000001-0.segment':
                    missing = 'g00000002-0.segment' if name.endswith('.manifest') else 'g00000001-0.segment'
                    error = f'cannot open {folder}/{missing}: No such file or directory'
                    support.wait_until(lambda: self.status_error(server, 'u') == error, error)
                    self.assertEqual(self.status(server, 'u')['generation'], '0')
                    server.wait_for_log(f' error table not opened table=u: {re.escape(error)}$')
                    shown = self.latchkey('status', '--server', server.address).out.decode()
                    self.assertIn(f'  it does not serve: {error}\n', shown)
            support.wait_until(lambda: len(client.call(LIST).tables) == 2, 'the new table')
        reply = client.call(BATCH_GET, table='u', keys=[b'a', b'b0', b'b1', b'c'])
        self.assertEqual([(row.outcome, row.value) for row in reply.rows],
                         [(FOUND, b'1'), (FOUND, b'x'), (FOUND, b'x'), (ABSENT, b'')])
        # It is watched as any other: its next generation comes by itself.
        self.make('build', '--value-column', 'rest', '-', table='u', stdin=b'a new\n')
        for name in ('g00000003.manifest', 'g00000003-0.segment'):
            shutil.copy(self.source / 'u' / name, folder)
        support.wait_until(lambda: client.call(GET, table='u', key=b'a').value == b'new', 'the next generation')
        self.assertEqual(self.status_error(server, 'u'), '')

    def test_the_first_table_of_all(self):
        self.data.mkdir()
        server = self.start('--allow-empty')
        client = self.connect(server)
        self.assertEqual(len(client.call(LIST).tables), 0)
        self.change()
        (self.data / 't').mkdir()
        for name in ('g00000001.manifest', 'g00000001-0.segment'):
            self.assert_fails(grpc.StatusCode.NOT_FOUND, client, GET, table='t', key=KEYS[0])
            shutil.copy(self.source / 't' / name, self.data / 't')
        support.wait_until(lambda: len(client.call(LIST).tables) == 1, 'the table')
        self.check(client, 1)


@unittest.skipUnless(shutil.which('rsync'), 'needs rsync')
class RsyncTest(CopyingTestCase):

    def test_its_own_order_never_shows(self):
        """It renames each file when it is whole, and a generation's segments before its manifest."""
        server, client = self.start_with_one()
        with self.asked_all_the_time(server):
            for flags in ([], ['--delay-updates'], ['--delete-after'], ['--whole-file']):
                self.change()
                self.change(append=KEYS[::3])
                newest = self.change(delete=KEYS[:self.random.randrange(1, 500)])
                self.rsync(*flags)
                self.wait_for_generation(server, client, newest)
        self.assertNotIn('not reloaded', server.log())
        self.assertEqual(self.names(self.data), self.names())

    def test_in_place_and_slowly(self):
        """It writes into the file under its last name; the manifest is there already."""
        server, client = self.start_with_one()
        self.change()
        path = self.data / 't' / 'g00000002-0.segment'
        size = (self.source / 't' / path.name).stat().st_size
        self.rsync('--include=*/', '--include=*.manifest', '--exclude=*')
        self.assertFalse(path.exists())
        self.wait_for_error(server, client, self.missing(path.name), 1)
        with self.asked_all_the_time(server) as served:
            self.rsync('--inplace', '--whole-file', f'--bwlimit={max(1, size // 1024 // 2)}')
            self.wait_for_generation(server, client, 2)
        self.assertEqual(served, [1, 2])
        self.assertRegex(server.log(), f'{LOG}{path}: (header cut off|file size): expected \\d+ bytes, got \\d+\n')

    def test_a_copy_that_is_broken_off_and_taken_up_again(self):
        server, client = self.start_with_one()
        self.change()
        name = 'g00000002-0.segment'
        shutil.copy(self.source / 't' / 'g00000002.manifest', self.data / 't')
        content = (self.source / 't' / name).read_bytes()
        half = self.data / 't' / name
        half.write_bytes(content[:len(content) // 2])
        self.wait_for_error(server, client,
                            f'{half}: file size: expected {len(content)} bytes, got {len(content) // 2}', 1)
        # What a killed rsync leaves is no file of the table.
        (self.data / 't' / f'.{name}.Xa71bc').write_bytes(content[:1000])
        self.rsync()
        self.wait_for_generation(server, client, 2)

    def test_a_delta_takes_two_files_and_shares_the_rest(self):
        server, client = self.start_with_one()
        base = self.mapped(server)
        self.assertEqual(list(base), ['g00000001-0.segment'])
        for change in ({'append': KEYS[100:150]}, {'delete': KEYS[120:170]}, {'append': [KEYS[0]]}):
            generation = self.change(**change)
            sent = [line.split('/')[-1] for line in self.rsync('--out-format=%n').splitlines()
                    if not line.endswith('/')]
            self.assertEqual(sorted(sent), [f'g{generation:08}-0.segment', f'g{generation:08}.manifest'])
            self.wait_for_generation(server, client, generation)
            mapped = self.mapped(server)
            self.assertEqual(sorted(mapped), [f'g{number:08}-0.segment' for number in range(1, generation + 1)])
            # The very map of before.
            self.assertEqual({name: mapped[name] for name in base}, base)
            base = mapped
        self.assertNotIn('not reloaded', server.log())

    def test_what_gc_removed_serves_until_the_new_one_is_whole(self):
        """Deleted files that are mapped keep serving."""
        server, client = self.start_with_one()
        self.change(append=KEYS[:10])
        self.rsync()
        self.wait_for_generation(server, client, 2)
        self.change(merge=True)
        self.make('gc', '--keep', 1)
        self.assertEqual(self.names(), ['g00000003-0.segment', 'g00000003.manifest', 'lock'])
        with self.asked_all_the_time(server) as served:
            self.rsync('--delete-after', '--exclude=g00000003-0.segment')
            self.assertEqual(self.names(self.data), ['g00000003.manifest', 'lock'])
            self.assertEqual(set(self.mapped(server)),
                             {'g00000001-0.segment (deleted)', 'g00000002-0.segment (deleted)'})
            self.wait_for_error(server, client, self.missing('g00000003-0.segment'), 2)
            self.rsync('--delete-after')
            self.wait_for_generation(server, client, 3)
        self.assertEqual(served, [2, 3])
        support.wait_until(lambda: set(self.mapped(server)) == {'g00000003-0.segment'}, 'the old maps to go')
        self.assertEqual(self.names(self.data), self.names())

    def test_mirrored_with_deletion_before_what_is_new(self):
        """For a while no manifest is there at all: no reason to stop serving what is held."""
        server, client = self.start_with_one()
        self.change()
        self.make('gc', '--keep', 1)
        segment = (self.source / 't' / 'g00000002-0.segment').stat().st_size
        with self.asked_all_the_time(server) as served:
            self.rsync('--delete', '--whole-file', f'--bwlimit={max(1, segment // 1024 // 3)}')
            self.wait_for_generation(server, client, 2)
        self.assertEqual(served, [1, 2])
        self.assertNotIn('table gone', server.log())

    def test_mirrored_again_and_again(self):
        """Builds, deltas, merges and gc at the source, each followed by a mirror that deletes last."""
        server, client = self.start_with_one()
        with self.asked_all_the_time(server) as served:
            for _ in range(12):
                kind = self.random.choice(('build', 'append', 'delete', 'merge'))
                before = self.contents[max(self.contents)]
                if kind == 'build' or len(before) < 400:
                    newest = self.change()
                elif kind == 'delete':
                    newest = self.change(delete=self.random.sample(list(before), 50))
                else:
                    newest = self.change(append=self.random.sample(KEYS, 50))
                    if kind == 'merge':
                        newest = self.change(merge=True)
                self.make('gc', '--keep', self.random.randrange(1, 3))
                self.rsync('--delete-after')
                self.assertEqual(self.names(self.data), self.names())
                if self.random.random() < 0.5:
                    self.wait_for_generation(server, client, newest)
            self.wait_for_generation(server, client, newest)
        self.assertEqual(served[-1], newest)
        support.wait_until(lambda: all('(deleted)' not in name for name in self.mapped(server)), 'no old map')


if __name__ == '__main__':
    unittest.main()
