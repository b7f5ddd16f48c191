"""`latchkey delete` and `latchkey merge`: what they print, what they refuse, and what is served afterwards."""

import json
import signal
import subprocess
import unittest

import support
from support import FAILURE, LATCHKEY, NOT_FOUND, OK, USAGE, parse_batch


class ChangeTestCase(support.TestCase):
    """A table 't' of u64 keys 1 to 1000 with values."""

    FLAGS = ('--key-kind', 'u64', '--value-column', 'rest')

    def setUp(self):
        super().setUp()
        self.expected = {}
        self.append(range(1, 1001), 'old', new=True)

    def append(self, keys, value, new=False):
        keys = list(keys)
        content = ''.join(f'{key} {value}{key}\n' for key in keys).encode()
        self.build('t', content, *self.FLAGS, *([] if new else ['--append']))
        self.expected.update({key: f'{value}{key}'.encode() for key in keys})

    def delete(self, keys, *flags, code=OK):
        """Deletes keys from standard input."""
        stdin = ''.join(f'{key}\n' for key in keys).encode()
        for key in keys:
            self.expected.pop(key, None)
        return self.latchkey('delete', '--data', self.data, '--table', 't', *flags, '-', stdin=stdin,
                             code=code)

    def merge(self, *flags, code=OK):
        return self.latchkey('merge', '--data', self.data, '--table', 't', *flags, code=code)

    def check(self, *where):
        """Looks all keys up, and some that were never there."""
        asked = list(range(1, 1100))
        self.random.shuffle(asked)
        out = self.latchkey('batch', *(where or ('--data', self.data)), '--table', 't',
                            stdin=''.join(f'{key}\n' for key in asked).encode(), code=NOT_FOUND).out
        actual = [(int(key), status, value) for key, status, _, value in parse_batch(out)]
        expected = [(key, 'found', self.expected[key]) if key in self.expected else (key, 'absent', b'')
                    for key in asked]
        self.assert_rows(actual, expected, 'batch')
        self.latchkey('verify', '--data', self.data, '--table', 't')

    def segments(self):
        out = self.latchkey('inspect', '--data', self.data, '--table', 't', '--json').out
        return json.loads(out)['segments']


class AppendTest(ChangeTestCase):

    def test_what_it_refuses(self):
        """Rows that are not as the table's: both are named."""
        for flags, got in ((('--key-kind', 'hex', '--value-column', 'rest'), 'key kind hex, 32-bit doc ids'),
                           (('--key-kind', 'u64'), 'no values'),
                           ((*self.FLAGS, '--value-width', 3), 'values of 3 bytes'),
                           ((*self.FLAGS, '--doc-id-bits', 64), '64-bit doc ids')):
            done = self.build('t', b'11 old\n', *flags, '--append', code=FAILURE)
            self.assertIn('the table has key kind u64, 32-bit doc ids, values of any length', done.err)
            self.assertRegex(done.err, f'the rows have .*{got}')
        self.build('none', b'11 old\n', *self.FLAGS, '--append', code=FAILURE)
        self.check()

    def test_an_update_wins(self):
        self.append([5, 5000], 'new')
        self.append([5], 'newer')
        self.check()


class DeleteTest(ChangeTestCase):

    def test_keys_from_standard_input_and_from_files(self):
        done = self.delete([1, 2, 2, 5000, 3])
        self.assertEqual(done.out, b't: generation 2: 5 keys read, 3 deleted, 1 not there, 1 repeated\n')
        self.check()
        first, second = self.file('first', b'10\n11\n'), self.file('second', b'12\n10\n1')
        done = self.latchkey('delete', '--data', self.data, '--table', 't', first, second)
        self.assertEqual(done.out, b't: generation 3: 5 keys read, 3 deleted, 1 not there, 1 repeated\n')
        for key in (10, 11, 12):
            del self.expected[key]
        self.check()

    def test_other_formats(self):
        command = ['delete', '--data', self.data, '--table', 't', '--json']
        csv = self.file('keys.csv', b'name,key\nx,20\n"y ""z""",21\n')
        done = self.latchkey(*command, '--format', 'csv', '--key-column', 'key', csv)
        self.assertEqual(json.loads(done.out)['deleted'], 2)
        tsv = self.file('keys.tsv', b'22\tx\n23\ty\n')
        done = self.latchkey(*command, '--format', 'tsv', tsv)
        self.assertEqual(json.loads(done.out)['deleted'], 2)
        fixed = self.file('keys.bin', b''.join(key.to_bytes(8, 'big') + b'abc' for key in (24, 25)))
        done = self.latchkey(*command, '--format', 'fixed', '--key-width', 8, '--value-width', 3, fixed)
        self.assertEqual(json.loads(done.out)['deleted'], 2)
        for key in range(20, 26):
            del self.expected[key]
        self.check()

    def test_nothing_to_delete_is_no_generation(self):
        done = self.delete([5000, 5001, 5000])
        self.assertEqual(done.out,
                         b't: generation 1 as before: 3 keys read, 0 deleted, 2 not there, 1 repeated\n')
        done = json.loads(self.delete([], '--json').out)
        seconds = done.pop('seconds')
        self.assertGreaterEqual(seconds, 0)
        self.assertEqual(done, {'table': 't', 'generation': 1, 'published': False, 'keys_read': 0,
                                'deleted': 0, 'absent': 0, 'repeated': 0, 'file_bytes': 0})
        self.check()

    def test_what_is_deleted_may_come_back(self):
        self.delete(range(1, 1001))
        self.check()
        self.append([1, 500], 'new')
        self.check()

    def test_what_it_refuses(self):
        command = ['delete', '--data', self.data, '--table', 't']
        bad = self.file('bad', b'1\n2\nx3\n')
        done = self.latchkey(*command, bad, code=FAILURE)
        self.assertIn(f'{bad}:3', done.err)
        self.check()
        done = self.latchkey('delete', '--data', self.data, '--table', 'none', bad, code=FAILURE)
        self.assertIn('none', done.err)
        self.assertFalse((self.data / 'none').exists())
        self.latchkey(*command, self.folder / 'missing', code=FAILURE)
        self.latchkey(*command, code=USAGE)
        self.latchkey(*command, '--format', 'xml', bad, code=USAGE)
        self.latchkey(*command, '--memory', '1', bad, code=USAGE)
        self.check()

    def test_one_writer_at_a_time(self):
        # It holds the lock as long as its standard input is open.
        first = self.spawn([LATCHKEY, 'delete', '--data', self.data, '--table', 't', '-'],
                           stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        support.wait_until(lambda: support.lock_is_held(self.data / 't'), 'the first to take the lock')
        done = self.latchkey('delete', '--data', self.data, '--table', 't', self.file('one', b'1\n'),
                             code=FAILURE)
        self.assertIn('lock', done.err)
        self.assertIn('lock', self.merge(code=FAILURE).err)
        first.send_signal(signal.SIGKILL)
        first.wait()
        self.check()
        self.delete([7])
        self.check()


class MergeTest(ChangeTestCase):

    def test_all(self):
        self.append(range(900, 1050), 'new')
        self.delete([1, 2, 900])
        dry = self.merge('--dry-run')
        size = sum((self.data / 't' / f'g0000000{i}-0.segment').stat().st_size for i in (1, 2, 3))
        self.assertEqual(dry.out.decode(), 't: generation 3: would merge the newest 3 of 3 segments: '
                         f'1153 rows, {size} bytes\n')
        self.assertEqual(len(self.segments()), 3)
        done = self.merge()
        self.assertRegex(done.out.decode(), r'^t: generation 4: 3 of 3 segments merged, 1153 rows read, '
                         r'1046 stored, 104 hidden by newer ones, 3 tombstones dropped, [0-9.]+ s\n$')
        self.assertEqual([segment['rows'] for segment in self.segments()], [1046])
        self.check()
        for flags in ((), ('--dry-run',), ('--policy', 'tiered')):
            self.assertEqual(self.merge(*flags).out, b't: generation 4: nothing to merge\n')

    def test_tiered(self):
        for i in range(3):
            self.append(range(1050 + i, 1060 + i), f'delta{i}-')
            self.assertEqual(self.merge('--policy', 'tiered').out.decode(),
                             f't: generation {2 + i}: nothing to merge\n')
        self.delete([5, 6, 1055])
        dry = json.loads(self.merge('--policy', 'tiered', '--dry-run', '--json').out)
        self.assertEqual((dry['published'], dry['table_segments'], dry['segments_merged'], dry['rows_read']),
                         (False, 5, 4, 33))
        done = json.loads(self.merge('--policy', 'tiered', '--json').out)
        self.assertEqual((done['published'], done['generation'], done['segments_merged']), (True, 6, 4))
        # The keys 5 and 6 are in the oldest segment, so their tombstones stay.
        self.assertEqual((done['rows_read'], done['rows_stored'], done['rows_hidden'],
                          done['tombstones_dropped']), (33, 14, 19, 0))
        self.assertEqual([segment['rows'] for segment in self.segments()], [14, 1000])
        self.check()

    def test_at_most_fifteen_segments_remain(self):
        for i in range(20):
            self.append(self.random.sample(range(1, 1100), 15), f'delta{i}-')
            self.delete(self.random.sample(range(1, 1100), 3))
            self.merge('--policy', 'tiered')
            self.assertLessEqual(len(self.segments()), 15)
        self.check()

    def test_served_after_a_restart(self):
        self.append(range(900, 1050), 'new')
        self.delete(range(1, 100))
        server = self.start()
        self.check('--server', server.address)
        server.stop()
        self.merge()
        server = self.start()
        self.check('--server', server.address)
        server.stop()

    def test_what_it_refuses(self):
        self.latchkey('merge', '--data', self.data, '--table', 'none', code=FAILURE)
        self.latchkey('merge', '--data', self.data, '--table', 'none', '--dry-run', code=FAILURE)
        self.assertFalse((self.data / 'none').exists())
        self.merge('--policy', 'some', code=USAGE)
        self.merge('--memory', '1', code=USAGE)
        self.append([1], 'new')
        path = self.data / 't' / 'g00000001-0.segment'
        pristine = path.read_bytes()
        place = self.random.randrange(len(pristine.rstrip(b'\0')))
        while pristine[place] == 0:
            place -= 1
        path.write_bytes(pristine[:place] + bytes([pristine[place] ^ 1]) + pristine[place + 1:])
        self.assertIn(str(path), self.merge(code=FAILURE).err)
        path.write_bytes(pristine)
        self.assertEqual(len(self.segments()), 2)
        self.check()

    def test_killed_at_any_time(self):
        for key in range(3):
            self.append(range(key, 1000, 3), f'delta{key}-')
        with open(self.file('many', b''), 'w') as out:
            out.writelines(f'{key} many{key}\n' for key in range(2000, 300_000))
        command = [LATCHKEY, 'build', '--data', self.data, '--table', 't', *self.FLAGS, '--append',
                   self.folder / 'many']
        self.assertEqual(support.run(command).code, OK)
        killed = 0
        for wait_ms in (0, 1, 3, 10, 20, 40, 80, 120):
            merge = self.spawn([LATCHKEY, 'merge', '--data', self.data, '--table', 't'],
                               stdout=subprocess.DEVNULL)
            try:
                code = merge.wait(wait_ms / 1000)
            except subprocess.TimeoutExpired:
                merge.send_signal(signal.SIGKILL)
                code = merge.wait()
            killed += code == -signal.SIGKILL
            self.check()
        self.assertGreater(killed, 0)
        self.merge()
        self.assertEqual(len(self.segments()), 1)
        self.check()
        self.assertEqual([name for name in (path.name for path in (self.data / 't').iterdir())
                          if name.endswith('.tmp')], [])


if __name__ == '__main__':
    unittest.main()
