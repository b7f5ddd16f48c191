"""The commands on generations: generations, rollback, diff, gc, and dump and verify of one of them."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import unittest

import support
from support import FAILURE, NOT_FOUND, OK, USAGE


class GenerationsTestCase(support.TestCase):

    def setUp(self):
        super().setUp()
        self.table = self.data / 't'

    def make(self, *contents):
        """A generation for each of `contents`, dicts of text keys to values."""
        for content in contents:
            lines = b''.join(b'%s\t%s\n' % (key.encode(), value.encode())
                             for key, value in content.items())
            self.build('t', lines, '--format', 'tsv', '--value-column', '2', '--key-kind', 'text')

    def append(self, content):
        lines = b''.join(b'%s\t%s\n' % (key.encode(), value.encode()) for key, value in content.items())
        self.build('t', lines, '--format', 'tsv', '--value-column', '2', '--key-kind', 'text', '--append')

    def ask(self, command, *arguments, code=OK, data=None):
        return self.latchkey(command, '--data', data or self.data, '--table', 't', *arguments, code=code)

    def ask_json(self, command, *arguments, code=OK, data=None):
        return json.loads(self.ask(command, *arguments, '--json', code=code, data=data).out)

    def listed(self, data=None):
        return self.ask_json('generations', data=data)['generations']

    def numbers(self):
        return [generation['generation'] for generation in self.listed()]

    def dump(self, *arguments, data=None):
        rows = self.ask('dump', *arguments, data=data).out.split(b'\n')[:-1]
        return {key.decode(): value.decode() for key, _, value in (row.split(b'\t') for row in rows)}

    def gc(self, keep, *flags, data=None):
        return self.ask_json('gc', '--keep', keep, *flags, data=data)

    def names(self):
        return sorted(os.listdir(self.table))


class ListTest(GenerationsTestCase):

    def test_numbers_times_counts_and_sizes(self):
        before = int(time.time())
        self.make({'a': '1'}, {'b': '1', 'c': '1'})
        self.append({'c': '2'})
        sizes = [(self.table / f'g{n:08}-0.segment').stat().st_size for n in (1, 2, 3)]
        expected = [(1, 1, 1, sizes[0]), (2, 1, 2, sizes[1]), (3, 2, 3, sizes[1] + sizes[2])]
        listed = self.listed()
        self.assertEqual([(g['generation'], g['segments'], g['rows'], g['file_bytes']) for g in listed],
                         expected)
        for generation in listed:
            self.assertLessEqual(before, generation['created_unix_s'])
            self.assertLessEqual(generation['created_unix_s'], time.time())
            self.assertEqual(generation['newest'], generation['generation'] == 3)
            self.assertIs(generation['held'], False)
        lines = self.ask('generations').out.decode().splitlines()
        self.assertEqual(lines[0], 'table t, 3 generations, newest first:')
        for line, (number, segments, rows, _) in zip(lines[1:], reversed(expected), strict=True):
            what = 'segment' if segments == 1 else 'segments'
            self.assertRegex(line, rf'^  {number}  \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC  {rows} rows in '
                                   rf'{segments} {what}, [\d.]+ KiB$')

    def test_a_manifest_edited_by_hand_is_listed_with_its_error(self):
        self.make({'a': '1'}, {'b': '1'})
        manifest = self.table / 'g00000001.manifest'
        manifest.write_bytes(manifest.read_bytes().replace(b'"rows": 1', b'"rows": 2'))
        first, second = self.listed()
        self.assertIn(f'{manifest}: damaged or edited', first['error'])
        self.assertNotIn('rows', first)
        self.assertEqual(second['rows'], 1)
        self.assertRegex(self.ask('generations').out.decode(), r"\n  1  can't be read: .*edited")

    def test_of_what_is_no_table(self):
        self.data.mkdir()
        for command in (['generations'], ['rollback', '--to', 1], ['gc', '--keep', 1],
                        ['diff', '--from', 1, '--to', 2], ['dump', '--generation', 1]):
            done = self.ask(*command, code=FAILURE)
            self.assertIn(str(self.table), done.err)
            self.assertFalse(self.table.exists())
            done = self.latchkey(*command, '--data', self.data, '--table', '../t', code=FAILURE)
            self.assertIn('table name', done.err)

    def test_usage(self):
        self.make({'a': '1'})
        for command in (['rollback'], ['rollback', '--to', 0], ['gc'], ['gc', '--keep', 0],
                        ['gc', '--keep', '-1'], ['diff', '--from', 1], ['diff', '--to', 1],
                        ['dump', '--generation', 0], ['verify', '--generation', 'x']):
            self.ask(*command, code=USAGE)
        for command in ('generations', 'rollback', 'diff', 'gc'):
            done = support.run([support.LATCHKEY, command, '--help'])
            self.assertEqual((done.code, done.err), (OK, ''))


class RollbackTest(GenerationsTestCase):

    def test_publishes_the_earlier_content_under_a_new_number(self):
        contents = [{'a': '1'}, {'a': '2', 'b': '2'}, {'c': '3'}]
        self.make(*contents)
        done = self.ask('rollback', '--to', 2)
        self.assertRegex(done.out.decode(),
                         r'^t: generation 4 has the content of 2: 2 rows in 1 segment, [\d.]+ KiB\n$')
        self.assertEqual(self.dump(), contents[1])
        for number, content in enumerate(contents, 1):
            self.assertEqual(self.dump('--generation', number), content)
            self.ask('verify', '--generation', number)
        self.append({'d': '4'})
        self.assertEqual(self.dump(), {**contents[1], 'd': '4'})
        server = self.start()
        done = self.latchkey('get', '--server', server.address, '--table', 't', 'a', 'd')
        self.assertEqual([row[3] for row in support.parse_batch(done.out)], [b'2', b'4'])

    def test_to_what_gc_removed(self):
        self.make(*({'a': str(i)} for i in range(5)))
        self.gc(2)
        names = self.names()
        for number in (1, 3, 6):
            done = self.ask('rollback', '--to', number, code=FAILURE)
            self.assertIn(f'there is no generation {number}; there are 4, 5', done.err)
        done = self.ask('rollback', '--to', 5, code=FAILURE)
        self.assertIn('newest already', done.err)
        self.assertEqual(self.names(), names)
        for command in (['dump', '--generation', 3], ['verify', '--generation', 3],
                        ['diff', '--from', 3, '--to', 5], ['diff', '--from', 5, '--to', 3]):
            self.assertIn('there are 4, 5', self.ask(*command, code=FAILURE).err)

    def test_to_whose_segment_is_gone_swapped_or_cut(self):
        self.make({'a': '1'}, {'b': '2'}, {'c': '3'})
        segment = self.table / 'g00000001-0.segment'
        whole = segment.read_bytes()
        for content in (None, whole[:-1], (self.table / 'g00000002-0.segment').read_bytes()):
            segment.unlink()
            if content is not None:
                segment.write_bytes(content)
            done = self.ask('rollback', '--to', 1, code=FAILURE)
            self.assertIn(f'cannot roll back to generation 1: ', done.err)
            self.assertIn(str(segment), done.err)
            self.assertEqual(self.numbers(), [1, 2, 3])
            segment.write_bytes(whole)
        self.ask('rollback', '--to', 1)

    def test_from_a_manifest_edited_by_hand(self):
        self.make({'a': '1'}, {'a': '2'})
        newest = self.table / 'g00000002.manifest'
        newest.write_bytes(newest.read_bytes()[:-2])
        self.ask('verify', code=FAILURE)
        self.ask('gc', '--keep', 1, code=FAILURE)
        self.ask('rollback', '--to', 1)
        self.assertEqual(self.dump(), {'a': '1'})
        self.assertEqual(self.gc(1)['removed'], [1, 2])
        self.ask('verify')

    def test_beside_another_writer(self):
        self.make({'a': '1'}, {'a': '2'})
        with open(self.table / 'lock') as lock:
            support.fcntl.flock(lock, support.fcntl.LOCK_EX)
            for command in (['rollback', '--to', 1], ['gc', '--keep', 1]):
                self.assertIn('another writer is at work', self.ask(*command, code=FAILURE).err)
            self.gc(1, '--dry-run')
        self.ask('rollback', '--to', 1)


class DiffTest(GenerationsTestCase):

    def keys(self, *arguments, code):
        lines = self.ask('diff', *arguments, '--keys', code=code).out.decode().split('\n')[:-1]
        return sorted(tuple(line.split('\t')) for line in lines)

    def test_counts_keys_and_exit_codes(self):
        self.make({'same': '1', 'new value': '1', 'gone': '1'},
                  {'same': '1', 'new value': '2', 'tab\\tkey': '3'})
        # Doc ids are ordinals, and count as well: of the first two keys they are the same.
        done = self.ask('diff', '--from', 1, '--to', 2, code=NOT_FOUND)
        self.assertEqual(done.out.decode(),
                         't: generation 1 to 2: 1 keys added, 1 removed, 1 changed\n')
        counts = self.ask_json('diff', '--from', 1, '--to', 2, code=NOT_FOUND)
        self.assertEqual(counts, {'table': 't', 'from': 1, 'to': 2, 'added': 1, 'removed': 1, 'changed': 1})
        keys = self.keys('--from', 1, '--to', 2, code=NOT_FOUND)
        added = [key for change, key in keys if change == 'added']
        self.assertEqual(len(added), 1)
        self.assertEqual(keys, sorted([('added', added[0]), ('changed', 'new value'), ('removed', 'gone')]))
        back = self.keys('--from', 2, '--to', 1, code=NOT_FOUND)
        self.assertEqual(back, sorted([('removed', added[0]), ('changed', 'new value'), ('added', 'gone')]))
        rows = support.parse_json_lines(
            self.ask('diff', '--from', 1, '--to', 2, '--keys', '--json', code=NOT_FOUND).out)
        self.assertEqual(sorted(row['change'] for row in rows), ['added', 'changed', 'removed'])
        self.assertIn({'change': 'removed', 'key': 'gone'}, rows)

    def test_equal_generations(self):
        self.make({'a': '1', 'b': '2'}, {'c': '3'})
        self.ask('rollback', '--to', 1)
        for one, other in ((1, 3), (3, 1), (2, 2)):
            done = self.ask('diff', '--from', one, '--to', other)
            self.assertIn('0 keys added, 0 removed, 0 changed', done.out.decode())
            self.assertEqual(self.keys('--from', one, '--to', other, code=OK), [])

    def test_appended_segments_against_a_plain_dict(self):
        contents = [{f'key {i}': 'v0' for i in range(500)}]
        self.make(contents[0])
        for round_number in range(1, 5):
            delta = {f'key {self.random.randrange(700)}': self.random.choice(('v0', f'v{round_number}'))
                     for _ in range(60)}
            self.append(delta)
            contents.append({**contents[-1], **delta})
        rows = {}  # with doc ids
        for number in range(1, 6):
            lines = self.ask('dump', '--generation', number).out.decode().split('\n')[:-1]
            rows[number] = {line.split('\t')[0]: tuple(line.split('\t')[1:]) for line in lines}
            self.assertEqual({key: value for key, (_, value) in rows[number].items()}, contents[number - 1])
        for before, after in ((1, 2), (1, 5), (5, 1), (3, 4), (4, 2)):
            old, new = rows[before], rows[after]
            expected = [('added', key) for key in new.keys() - old.keys()]
            expected += [('removed', key) for key in old.keys() - new.keys()]
            expected += [('changed', key) for key in new.keys() & old.keys() if new[key] != old[key]]
            self.assertEqual(self.keys('--from', before, '--to', after, code=NOT_FOUND), sorted(expected))

    def test_damage_is_a_failure_not_a_difference(self):
        self.make({f'{i}': 'v' for i in range(1000)}, {'a': '1'})
        segment = self.table / 'g00000001-0.segment'
        whole = segment.read_bytes()
        segment.write_bytes(whole[:4096 * 16] + bytes(len(whole) - 4096 * 17) + whole[-4096:])
        for numbers in ((1, 2), (2, 1)):
            self.ask('diff', '--from', numbers[0], '--to', numbers[1], code=FAILURE)

    def test_output_that_cannot_be_written(self):
        self.make({'a': '1'}, {'b': '1'})
        with open('/dev/full', 'wb') as full:
            for flags in ((), ('--keys',)):
                done = support.run([support.LATCHKEY, 'diff', '--data', self.data, '--table', 't', '--from', 1,
                                    '--to', 2, *flags], stdout=full)
                self.assertEqual(done.code, FAILURE)
                self.assertIn('cannot write standard output', done.err)


class GcTest(GenerationsTestCase):

    def test_keeps_the_newest(self):
        self.make(*({'a': str(i)} for i in range(4)))
        self.append({'b': '1'})
        before = self.names()
        dry = self.gc(2, '--dry-run')
        self.assertEqual(self.names(), before)
        done = self.gc(2)
        self.assertEqual({**dry, 'dry_run': False}, done)
        self.assertEqual((done['kept'], done['held'], done['removed']), ([4, 5], [], [1, 2, 3]))
        self.assertEqual(sorted(done['files']), sorted(set(before) - set(self.names())))
        self.assertEqual(self.names(), ['g00000004-0.segment', 'g00000004.manifest', 'g00000005-0.segment',
                                        'g00000005.manifest', 'lock'])
        self.assertEqual(self.dump(), {'a': '3', 'b': '1'})
        self.assertEqual(self.dump('--generation', 4), {'a': '3'})

    def test_says_what_it_did(self):
        self.make(*({'a': str(i)} for i in range(4)))
        done = self.ask('gc', '--keep', 1, '--dry-run').out.decode().splitlines()
        self.assertRegex(done[0], r'^t: would remove 3 generations \(1 to 3\), 6 files, [\d.]+ KiB; keeps 4$')
        self.assertEqual(done[1], '  g00000001.manifest')
        self.assertEqual(len(done), 7)
        done = self.ask('gc', '--keep', 1).out.decode()
        self.assertRegex(done, r'^t: removed 3 generations \(1 to 3\), 6 files, [\d.]+ KiB; keeps 4\n$')
        done = self.ask('gc', '--keep', 1).out.decode()
        self.assertEqual(done, 't: removed no generation, 0 files, 0 B; keeps 4\n')

    def test_leaves_what_a_server_holds(self):
        self.make({'a': '1'})
        server = self.start()
        server.send_signal(signal.SIGSTOP)  # so that it can't go on to what comes
        self.make({'a': '2'}, {'a': '3'})
        self.check_held_by(server)

    def check_held_by(self, server):
        self.assertEqual([g['held'] for g in self.listed()], [True, False, False])
        self.assertRegex(self.ask('generations').out.decode(), r'\n  1  .*, held by a reader\n$')
        done = self.gc(1)
        self.assertEqual((done['kept'], done['held'], done['removed']), ([3], [1], [2]))
        self.assertEqual(self.names(), ['g00000001-0.segment', 'g00000001.manifest', 'g00000003-0.segment',
                                        'g00000003.manifest', 'lock'])
        self.assertIn('; keeps 3, and 1, held by readers\n', self.ask('gc', '--keep', 1).out.decode())
        server.send_signal(signal.SIGCONT)
        done = self.latchkey('get', '--server', server.address, '--table', 't', 'a')
        self.assertIn(support.parse_batch(done.out)[0][3], (b'1', b'3'))
        server.stop()
        self.assertEqual(self.gc(1)['removed'], [1])
        self.assertEqual(self.names(), ['g00000003-0.segment', 'g00000003.manifest', 'lock'])
        self.assertEqual(self.dump(), {'a': '3'})

    @contextlib.contextmanager
    def read_only_mount(self):
        """The data directory once more, where nothing can be written."""
        mount = self.folder / 'mount'
        mount.mkdir()
        for command in (['mount', '--bind', self.data, mount],
                        ['mount', '-o', 'remount,bind,ro', mount]):
            done = support.run(command)
            if done.code != 0:
                support.run(['umount', mount])
                self.skipTest(f'cannot mount: {done.err}')
        try:
            yield mount
        finally:
            support.run(['umount', '--lazy', mount])

    @unittest.skipUnless(os.geteuid() == 0, 'needs root to mount')
    def test_leaves_what_a_reader_on_a_read_only_volume_holds(self):
        self.make({'a': '1'})
        with self.read_only_mount() as mount:
            with self.assertRaises(OSError):
                (mount / 't' / 'file').write_bytes(b'')
            server = self.start(data=mount)
            server.send_signal(signal.SIGSTOP)
            self.make({'a': '2'}, {'a': '3'})
            # There, too, can be seen who holds what, and what gc would do.
            self.assertEqual([g['held'] for g in self.listed(data=mount)], [True, False, False])
            self.assertEqual(self.gc(1, '--dry-run', data=mount)['removed'], [2])
            self.assertIn('Read-only file system', self.ask('gc', '--keep', 1, data=mount, code=FAILURE).err)
            self.assertIn('Read-only file system', self.ask('rollback', '--to', 1, data=mount, code=FAILURE).err)
            self.check_held_by(server)

    def test_a_dump_that_is_under_way_is_a_reader(self):
        self.make({f'{i}': 'v' * 100 for i in range(20_000)}, {'a': '2'})
        command = [support.LATCHKEY, 'dump', '--data', str(self.data), '--table', 't', '--generation', '1']
        with subprocess.Popen(command, stdout=subprocess.PIPE) as dump:
            self.addCleanup(dump.kill)
            lines = [dump.stdout.readline()]  # it waits then, since the pipe is full
            self.assertEqual(self.gc(1)['held'], [1])
            lines += dump.stdout.readlines()
            self.assertEqual(len(lines), 20_000)
            self.assertEqual(dump.wait(support.TIMEOUT_S), OK)
        self.assertEqual(self.gc(1)['removed'], [1])

    def test_a_manifest_edited_by_hand(self):
        self.make({'a': '1'}, {'a': '2'}, {'a': '3'})
        manifest = self.table / 'g00000002.manifest'
        manifest.write_bytes(manifest.read_bytes().replace(b'00000002-0', b'00000001-0'))
        names = self.names()
        for keep in (2, 3):
            done = self.ask('gc', '--keep', keep, code=FAILURE)
            self.assertIn('no segment is removed', done.err)
            self.assertIn(f'{manifest}: damaged or edited', done.err)
            self.assertEqual(self.names(), names)
        self.assertEqual(self.gc(1)['removed'], [1, 2])
        self.assertEqual(self.dump(), {'a': '3'})

    def test_tidies_up_after_a_killed_writer(self):
        self.make({'a': '1'})
        for name in ('spill.tmp', 'g00000002.manifest.tmp', 'g00000002-0.segment'):
            (self.table / name).write_bytes(b'left over')
        (self.table / 'notes.txt').write_bytes(b'not ours')
        self.assertEqual(sorted(self.gc(1)['files']),
                         ['g00000002-0.segment', 'g00000002.manifest.tmp', 'spill.tmp'])
        self.assertEqual(self.names(), ['g00000001-0.segment', 'g00000001.manifest', 'lock', 'notes.txt'])

    def test_readers_beside_builds_and_gc(self):
        """Whoever opens the newest generation gets one, however fast they come and go."""
        self.make({'a': '0'})
        stop = self.folder / 'stop'
        script = ('while ! [ -e "$3" ]; do "$1" get a --data "$2" --table t || exit 1; done')
        readers = [self.spawn(['sh', '-c', script, 'sh', support.LATCHKEY, self.data, stop],
                              stdout=subprocess.DEVNULL) for _ in range(2)]
        for i in range(40):
            if i % 3 == 2:
                self.ask('rollback', '--to', self.numbers()[0])
            else:
                self.make({'a': str(i)})
            self.gc(1 if i % 3 == 0 else 2)
        stop.write_bytes(b'')
        for reader in readers:
            self.assertEqual(reader.wait(), 0, reader.log())
        self.assertEqual(self.gc(1)['held'], [])


class ChosenGenerationTest(GenerationsTestCase):

    def test_dump_and_verify(self):
        self.make({'a': '1'}, {'b': '2', 'c': '3'})
        self.append({'b': '4'})
        self.assertEqual(self.dump(), {'b': '4', 'c': '3'})
        self.assertEqual(self.dump('--generation', 1), {'a': '1'})
        self.assertEqual(self.dump('--generation', 2), {'b': '2', 'c': '3'})
        self.assertEqual(self.ask_json('verify', '--generation', 1),
                         {'table': 't', 'generation': 1, 'segments': 1, 'rows': 1, 'keys': 1})
        self.assertEqual(self.ask_json('verify'),
                         {'table': 't', 'generation': 3, 'segments': 2, 'rows': 3, 'keys': 2})
        segment = self.table / 'g00000003-0.segment'
        whole = bytearray(segment.read_bytes())
        whole[65536 + 1] ^= 1
        segment.write_bytes(whole)
        self.assertIn(str(segment), self.ask('verify', code=FAILURE).err)
        self.assertEqual(re.findall(r'generation \d+ is sound', self.ask('verify', '--generation', 2).out.decode()),
                         ['generation 2 is sound'])


if __name__ == '__main__':
    unittest.main()
