"""`latchkey` when the world fails: full disks, killed builds, two writers, outputs that are closed, and terminals."""

import base64
import os
import pty
import select
import signal
import subprocess
import unittest

import support
from support import FAILURE, LATCHKEY, OK

SIGPIPE_CODE = -signal.SIGPIPE


def write_rows(path, rng, count):
    """A file of `count` hex keys with values; too large for a small memory or disk."""
    with open(path, 'wb') as out:
        for _ in range(count):
            out.write(b'%032x %s\n' % (rng.getrandbits(128), base64.b64encode(rng.randbytes(30))))


def lock_is_held(path):
    """Whether some process holds a lock on the file; taking it to find out would disturb those who want it."""
    try:
        inode = path.stat().st_ino
    except FileNotFoundError:
        return False
    with open('/proc/locks') as locks:
        return any(line.split()[5].endswith(f':{inode}') for line in locks if ' -> ' not in line)


class FaultTestCase(support.TestCase):
    """A table 't' with the key 01 in generation 1, and what tells that it is as it was."""

    FLAGS = ('--key-kind', 'hex', '--value-column', 'rest')

    def make_table(self, data):
        self.data = data
        self.table = data / 't'
        self.build('t', b'01 old\n', *self.FLAGS)

    def build_command(self, *inputs):
        return [LATCHKEY, 'build', '--data', self.data, '--table', 't', *self.FLAGS, '--memory', 16, *inputs]

    def assert_untouched(self):
        done = self.latchkey('get', '--data', self.data, '--table', 't', '01')
        self.assertEqual(done.out, b'01\tfound\t0\told\n')
        self.latchkey('verify', '--data', self.data, '--table', 't')

    def names(self):
        return sorted(path.name for path in self.table.iterdir())

    OLD_FILES = ['g00000001-0.segment', 'g00000001.manifest', 'lock']


class FullDiskTest(FaultTestCase):

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest('only root can mount a small disk')
        self.disk = self.folder / 'disk'
        self.disk.mkdir()
        support.run(['mount', '-t', 'tmpfs', '-o', 'size=4m', 'latchkey-test', self.disk], check=True)
        self.addCleanup(support.run, ['umount', self.disk], check=True)
        self.make_table(self.disk / 'data')

    def refuse(self, rows, named):
        """A build that runs out of disk while it writes the file `named`."""
        path = self.folder / 'large'
        write_rows(path, self.random, rows)
        done = support.run(self.build_command(path))
        self.assertEqual((done.code, done.out), (FAILURE, b''))
        self.assertIn(f'{self.table}/{named}', done.err)
        self.assertIn('No space left on device', done.err)
        self.assertEqual(self.names(), self.OLD_FILES)
        self.assert_untouched()

    def test_no_room_for_the_segment(self):
        self.refuse(100_000, 'g00000002-0.segment')

    def test_no_room_for_what_is_spilled(self):
        self.refuse(400_000, 'spill.tmp')

    def test_no_room_for_the_manifest(self):
        # A segment like the one of generation 1 fits, and then all is full.
        segment = (self.table / 'g00000001-0.segment').stat()
        filler = self.disk / 'filler'
        free = os.statvfs(self.disk)
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - segment.st_blocks * 512))
        done = support.run(self.build_command(self.file('small', b'02 new\n')))
        self.assertEqual((done.code, done.out), (FAILURE, b''))
        self.assertIn('g00000002.manifest', done.err)
        self.assertIn('No space left on device', done.err)
        self.assertEqual(self.names(), self.OLD_FILES)
        self.assert_untouched()

    def test_the_next_build_that_fits_works(self):
        self.refuse(100_000, 'g00000002-0.segment')
        self.build('t', b'02 new\n', *self.FLAGS)
        done = self.latchkey('get', '--data', self.data, '--table', 't', '02')
        self.assertEqual(done.out, b'02\tfound\t0\tnew\n')

    def test_standard_output_that_is_full(self):
        small = self.file('small', b'02 new\n')
        where = ['--data', self.data, '--table', 't']
        for arguments in (['get', *where, '01'], ['batch', *where], ['inspect', *where],
                          ['inspect', *where, '--json'], ['verify', *where], ['dump', *where],
                          ['build', *where, *self.FLAGS, small], ['--help'], ['--version'], ['get', '--help']):
            with self.subTest(arguments), open('/dev/full', 'wb') as full:
                done = support.run([LATCHKEY, *arguments], stdin=b'01\n', stdout=full)
                self.assertEqual(done.code, FAILURE)
                self.assertIn('cannot write standard output', done.err)
                self.assertEqual(done.err.count('\n'), 1)


class WritersTest(FaultTestCase):

    def setUp(self):
        super().setUp()
        self.make_table(self.data)

    def start_build(self):
        """A build that waits for more input, with the table's lock held."""
        process = self.spawn(self.build_command('-'), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        support.wait_until(lambda: lock_is_held(self.table / 'lock'), 'the lock')
        return process

    def test_the_second_writer_is_refused_and_the_first_goes_on(self):
        first = self.start_build()
        done = support.run(self.build_command('-'), stdin=b'03 second\n')
        self.assertEqual(done.code, FAILURE)
        self.assertIn(f'{self.table}/lock is locked: another writer', done.err)
        self.assert_untouched()  # readers need no lock
        first.stdin.write(b'02 first\n')
        first.stdin.close()
        self.assertEqual(first.wait(), OK, first.log())
        done = self.latchkey('get', '--data', self.data, '--table', 't', '02')
        self.assertEqual(done.out, b'02\tfound\t0\tfirst\n')
        done = self.latchkey('verify', '--data', self.data, '--table', 't', '--json')
        self.assertEqual(support.parse_json_lines(done.out)[0]['generation'], 2)

    def test_another_table_has_a_lock_of_its_own(self):
        self.start_build()
        self.build('other', b'02 new\n', *self.FLAGS)

    def test_a_server_reads_while_a_build_runs(self):
        server = self.start()
        self.start_build()
        self.latchkey('get', '--server', server.address, '--table', 't', '01')

    def check_next_build(self):
        """What a killed build leaves is cleaned up by the next one."""
        self.assertNotEqual(self.names(), self.OLD_FILES, 'the killed build left nothing to clean up')
        self.assert_untouched()
        self.build('t', b'02 new\n', *self.FLAGS)
        self.assertEqual(self.names(), ['g00000001-0.segment', 'g00000001.manifest', 'g00000002-0.segment',
                                        'g00000002.manifest', 'lock'])
        self.latchkey('get', '--data', self.data, '--table', 't', '02')
        self.latchkey('verify', '--data', self.data, '--table', 't')

    def test_killed_while_it_spills(self):
        path = self.folder / 'large'
        write_rows(path, self.random, 400_000)
        process = self.start_build()
        process.stdin.write(path.read_bytes())
        process.stdin.flush()
        support.wait_until((self.table / 'spill.tmp').exists, 'the spill file')
        process.send_signal(signal.SIGKILL)
        self.assertEqual(process.wait(), -signal.SIGKILL)
        self.check_next_build()

    def test_killed_while_it_writes_the_segment(self):
        path = self.folder / 'large'
        write_rows(path, self.random, 400_000)
        process = self.spawn(self.build_command(path), stdout=subprocess.DEVNULL)
        support.wait_until((self.table / 'g00000002-0.segment').exists, 'the segment file')
        process.send_signal(signal.SIGKILL)
        self.assertEqual(process.wait(), -signal.SIGKILL, 'it was faster than the test: more rows are needed')
        self.assertFalse((self.table / 'g00000002.manifest').exists())
        self.check_next_build()

    def test_interrupted(self):
        process = self.start_build()
        process.stdin.write(b'02 new\n')
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(), -signal.SIGINT)
        self.assert_untouched()


class ClosedOutputTest(FaultTestCase):
    """`latchkey … | head`: the reader of the output goes first."""

    def setUp(self):
        super().setUp()
        self.data.mkdir()
        path = self.folder / 'many'
        write_rows(path, self.random, 20_000)
        self.latchkey('build', '--data', self.data, '--table', 't', *self.FLAGS, path)

    def run_closed(self, *arguments, stdin=b''):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = support.run([LATCHKEY, *arguments], stdin=stdin, stdout=writer)
        finally:
            os.close(writer)
        self.assertIn(done.code, (SIGPIPE_CODE, FAILURE))
        return done

    def test_build_is_published_all_the_same(self):
        path = self.file('new', b'02 new\n')
        self.run_closed('build', '--data', self.data, '--table', 't', *self.FLAGS, path)
        self.latchkey('get', '--data', self.data, '--table', 't', '02')
        self.latchkey('verify', '--data', self.data, '--table', 't')

    def test_dump_and_batch(self):
        self.run_closed('dump', '--data', self.data, '--table', 't')
        self.run_closed('batch', '--data', self.data, '--table', 't', stdin=b'00\n' * 10_000)
        self.run_closed('get', '--data', self.data, '--table', 't', '00')

    def test_head_gets_its_lines(self):
        shell = f'"{LATCHKEY}" dump --data "{self.data}" --table t | head -n 3'
        done = support.run(['bash', '-c', shell])
        self.assertEqual((done.code, done.err, len(done.out.splitlines())), (OK, '', 3))


class ProgressTest(FaultTestCase):

    def setUp(self):
        super().setUp()
        self.input = self.folder / 'many'
        write_rows(self.input, self.random, 20_000)
        self.command = [LATCHKEY, 'build', '--data', self.data, '--table', 't', *self.FLAGS]

    def run_on_terminal(self, arguments, stdin=subprocess.DEVNULL):
        """Runs with a terminal as standard error: the exit code, and what stood on the terminal."""
        master, slave = pty.openpty()
        try:
            child = subprocess.Popen([str(argument) for argument in arguments], stdin=stdin,
                                     stdout=subprocess.DEVNULL, stderr=slave)
        finally:
            os.close(slave)
        shown = b''
        with os.fdopen(master, 'rb', buffering=0) as terminal:
            while True:
                if not select.select([terminal], [], [], support.TIMEOUT_S)[0]:
                    child.kill()
                    self.fail('the build hangs')
                try:
                    part = terminal.read(4096)
                except OSError:  # the other side is closed
                    break
                if not part:
                    break
                shown += part
        return child.wait(support.TIMEOUT_S), shown.decode()

    def test_a_terminal_shows_phases_and_is_wiped(self):
        code, shown = self.run_on_terminal([*self.command, self.input])
        self.assertEqual(code, OK)
        for phase in ('reading: ', 'writing: ', 'checking: '):
            self.assertIn(phase, shown)
        self.assertNotIn('\n', shown)
        self.assertTrue(shown.endswith('\r\x1b[K'))

    def test_an_error_stands_on_a_line_of_its_own(self):
        code, shown = self.run_on_terminal([*self.command, self.file('bad', b'zz\n')])
        self.assertEqual(code, FAILURE)
        self.assertRegex(shown, r'\r\x1b\[Klatchkey: .*bad:1: not hexadecimal')

    def test_a_pipe_shows_nothing(self):
        done = support.run([*self.command, self.input])
        self.assertEqual((done.code, done.err), (OK, ''))
        self.assertEqual(done.out.count(b'\n'), 1)


if __name__ == '__main__':
    unittest.main()
