"""A watched table: `latchkey merge --watch`."""

import json
import signal
import subprocess
import time
import unittest

import support
from support import FAILURE, LATCHKEY, OK, USAGE


class WatchTest(support.TestCase):
    """`merge --watch`: a table that changes all the time stays tidy by itself."""

    def watch(self, *flags):
        with open(self.folder / 'watch.out', 'wb') as out:
            return self.spawn([LATCHKEY, 'merge', '--data', self.data, '--table', 't', '--watch',
                               *flags], stdout=out)

    def said(self):
        return (self.folder / 'watch.out').read_text().splitlines()

    def manifest(self):
        return json.loads(self.latchkey('inspect', '--data', self.data, '--table', 't', '--json').out)

    def append(self, number):
        self.build('t', b''.join(b'%d-%d %d\n' % (number, i, number) for i in range(50)),
                   '--value-column', 'rest', '--append')

    def test_deltas_are_merged_as_they_arrive(self):
        self.build('t', b'first 0\n', '--value-column', 'rest')
        watcher = self.watch('--keep', '2')
        for number in range(60):
            # It may be at work, and then has the lock.
            def append():
                path = self.file('delta', b''.join(b'%d-%d %d\n' % (number, i, number)
                                                   for i in range(50)))
                done = support.run([LATCHKEY, 'build', '--data', self.data, '--table', 't',
                                    '--value-column', 'rest', '--append', path])
                return done.code == OK
            support.wait_until(append, 'the lock')
            if number % 15 == 14:
                support.wait_until(lambda: len(self.manifest()['segments']) < 4, 'a merge')
        support.wait_until(lambda: len(json.loads(self.latchkey(
            'generations', '--data', self.data, '--table', 't', '--json').out)['generations']) <= 2,
                   'the last gc')
        time.sleep(3.5)  # for two more looks: at work it would be ended by the signal, at rest it ends by itself
        self.assertTrue(watcher.running())
        watcher.send_signal(signal.SIGTERM)
        self.assertEqual(watcher.wait(), OK)
        dumped = self.latchkey('dump', '--data', self.data, '--table', 't').out
        self.assertEqual(len(dumped.splitlines()), 60 * 50 + 1)
        self.latchkey('verify', '--data', self.data, '--table', 't')
        merges = [line for line in self.said() if ' segments merged, ' in line]
        self.assertGreaterEqual(len(merges), 4)
        self.assertTrue(any(': removed ' in line for line in self.said()))

    def test_what_fails_is_said_once_and_tried_again(self):
        self.build('t', b'first 0\n', '--value-column', 'rest')
        for number in range(4):
            self.append(number)
        # Somebody else writes, for as long as its input is open.
        writer = self.spawn([LATCHKEY, 'build', '--data', self.data, '--table', 't',
                             '--value-column', 'rest', '--append', '-'], stdin=subprocess.PIPE,
                            stdout=subprocess.DEVNULL)
        writer.stdin.write(b'slow 1\n')
        writer.stdin.flush()
        support.wait_until(lambda: support.lock_is_held(self.data / 't'), 'the writer')
        watcher = self.watch('--json', '--policy', 'all')
        watcher.wait_for_log('latchkey: .*')
        time.sleep(3.5)  # for two more looks
        self.assertEqual(len(watcher.log().splitlines()), 1, watcher.log())
        writer.stdin.close()
        self.assertEqual(writer.wait(), OK)
        support.wait_until(lambda: len(self.manifest()['segments']) == 1, 'the merge')
        support.wait_until(self.said, 'its report, after which it rests')
        watcher.send_signal(signal.SIGINT)
        self.assertEqual(watcher.wait(), OK)
        self.assertEqual([json.loads(line)['segments_merged'] for line in self.said()], [6])
        self.assertIn(b'slow\t', self.latchkey('dump', '--data', self.data, '--table', 't').out)

    def test_what_it_is_not_for(self):
        self.assertIn('none', self.latchkey('merge', '--data', self.data, '--table', 'none', '--watch',
                                            code=FAILURE).err)
        for flags in (('--watch', '--dry-run'), ('--keep', '1')):
            self.latchkey('merge', '--data', self.data, '--table', 't', *flags, code=USAGE)


if __name__ == '__main__':
    unittest.main()
