"""Files that lose pages while they are served: a disk with errors, and a file that somebody cut.

Needs root and /dev/fuse, for the disk with errors (tests/support/faulty_disk.cc).
"""

import os
import random
import signal
import subprocess
import threading
import unittest

import support
from rpc_test_case import (ABSENT, BATCH_GET, DAMAGED_DATA, DESCRIBE, FOUND, GET, NOT_DONE, PACKED, ROWS,
                           RpcTestCase)
from support import BIN_DIR, FAILURE, LATCHKEY, LATCHKEYD

FAULTY_DISK = BIN_DIR / 'faulty_disk'
SEGMENTS = ('t/g00000001-0.segment', 't/g00000002-0.segment')  # the newer one last
DAMAGED = (NOT_DONE, DAMAGED_DATA, 0, b'')
MISSING = (ABSENT, 0, 0, b'')
BATCH_KEYS, ONE_BY_ONE_KEYS = 300, 1500


class LostPagesTestCase(RpcTestCase):
    """A table of two segments that have some keys in common, and clients that check every answer."""

    def setUp(self):
        super().setUp()
        rng = self.random
        keys = support.random_keys(rng, 10_000, 'hex', one_length=True)
        self.expected, self.holder = {}, {}
        for number, part in enumerate((keys[:6000], keys[4000:8000])):
            values = [rng.randbytes(rng.choice((1, 20, 150, 300))).hex().encode() for _ in part]
            content = b''.join(b'%s\t%s\n' % (key.hex().encode(), value) for key, value in zip(part, values))
            self.build('t', content, '--key-kind', 'hex', '--format', 'tsv', '--value-column', '2',
                       *(('--append',) if number else ()))
            for doc_id, (key, value) in enumerate(zip(part, values)):
                self.expected[key] = (FOUND, 0, doc_id, value)
                self.holder[key] = number
        self.keys = keys
        rng.shuffle(self.keys)
        self.lock = threading.Lock()
        self.asked = self.damaged = 0

    def segment(self, number):
        return self.data / SEGMENTS[number]

    def ask_batch(self, client, keys, form):
        """The answers to a batch: (outcome, reason, doc id, value) each."""
        reply = client.call(BATCH_GET, table='t', packed_keys={'data': b''.join(keys), 'width': 16},
                            answer_form=form)
        if form == PACKED:
            columns = reply.packed_rows
            answers, at = [], 0
            for outcome, doc_id, length in zip(columns.outcomes, columns.doc_ids_32, columns.value_lengths):
                answers.append((outcome & 15, outcome >> 4, doc_id, columns.values[at:at + length]))
                at += length
        else:
            answers = [(row.outcome, row.reason, row.doc_id, row.value) for row in reply.rows]
        self.assertEqual(len(answers), len(keys))
        self.assertEqual(reply.complete, all(answer[0] != NOT_DONE for answer in answers))
        return answers

    def ask_one(self, client, key):
        reply = client.call(GET, table='t', key=key)
        if reply.outcome == FOUND:
            self.assertEqual(reply.value_size, len(reply.value))
        return reply.outcome, reply.reason, reply.doc_id, reply.value

    def ask(self, client, keys, form):
        """Asks in one batch, or one by one if `form` is None, and counts; what is never right fails the test."""
        if form is None:
            answers = [self.ask_one(client, key) for key in keys]
        else:
            answers = self.ask_batch(client, keys, form)
        with self.lock:
            self.asked += len(answers)
            self.damaged += answers.count(DAMAGED)
        for key, answer in zip(keys, answers):
            if answer != DAMAGED and answer != self.expected.get(key, MISSING):
                self.fail(f'form {form}: expected {self.expected.get(key, MISSING)} of segment '
                          f'{self.holder.get(key)}, got {answer}')
        return answers

    def ask_all(self, client, form):
        """Asks for all keys; one by one, for those that there is time for."""
        count = len(self.keys) if form is not None else ONE_BY_ONE_KEYS
        return [answer for at in range(0, count, BATCH_KEYS)
                for answer in self.ask(client, self.keys[at:at + BATCH_KEYS], form)]

    def damage_under_load(self, server, damage):
        """Calls damage() while clients ask; afterwards each of them asks for all keys once more."""
        damaged = threading.Event()
        forms = (ROWS, PACKED, PACKED, None)
        clients = [self.connect(server) for _ in forms]
        started, errors = set(), []

        def load(number):
            rng = random.Random(f'{support.SEED} {self.id()} {number}')
            client = clients[number]
            try:
                while not damaged.is_set():
                    size = rng.randrange(1, BATCH_KEYS) if forms[number] is not None else 5
                    self.ask(client, rng.sample(self.keys, size), forms[number])
                    started.add(number)
                self.ask_all(client, forms[number])
            except BaseException as error:  # told by the main thread
                errors.append(error)

        threads = [threading.Thread(target=load, args=(number,)) for number in range(len(forms))]
        for thread in threads:
            thread.start()
        try:
            support.wait_until(lambda: errors or len(started) == len(forms), 'answers to all clients')
            damage()
        finally:
            damaged.set()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]

    def check_quarantine(self, client, lost, others_answered):
        """What later look-ups say. The others: keys that neither the lost segment has nor a newer one."""
        for form in (PACKED, None):
            others = others_damaged = 0
            for key, answer in zip(self.keys, self.ask_all(client, form)):
                holder = self.holder.get(key)
                if holder == lost:
                    self.assertEqual(answer, DAMAGED)
                elif holder is not None and holder > lost:
                    self.assertEqual(answer, self.expected[key])
                else:
                    others += 1
                    others_damaged += answer == DAMAGED
            # By a fingerprint of the segment map that it shares, one key in 170.
            if others_answered:
                self.assertLess(others_damaged, others / 20)

    def check_counts(self, client):
        counts = client.call(DESCRIBE, table='t').counts
        self.assertEqual((counts.keys, counts.damaged), (self.asked, self.damaged))
        self.assertGreater(self.damaged, 0)

    def check_whole(self, client):
        """All answers are as they should be."""
        for answer in self.ask_all(client, PACKED):
            self.assertNotEqual(answer, DAMAGED)


class DiskErrorsTest(LostPagesTestCase):

    def setUp(self):
        super().setUp()
        self.assertEqual(os.geteuid(), 0, 'this needs root, to mount a file system')
        self.assertTrue(os.path.exists('/dev/fuse'), 'this needs /dev/fuse')
        self.control = self.folder / 'control'
        self.mount = self.folder / 'mount'
        self.mount.mkdir()
        self.addCleanup(subprocess.run, ['umount', '--lazy', self.mount], stderr=subprocess.DEVNULL)
        self.disk = self.spawn([FAULTY_DISK, self.data, self.mount, self.control])
        self.disk.wait_for_log('^mounted')

    def break_disk(self, number, begin, end=1 << 62):
        """From now on these bytes of a segment can't be read, and no page of it is in memory."""
        control = self.folder / 'control.new'
        control.write_text(f'{begin} {end} {SEGMENTS[number]}\n')
        control.rename(self.control)
        with open(self.mount / SEGMENTS[number], 'rb') as file:
            self.assertEqual(len(os.pread(file.fileno(), 4096, 0)), 4096)
            with self.assertRaises(OSError):
                os.pread(file.fileno(), 4096, begin)

    def check_disk_errors(self, number, *flags, others_answered):
        server = self.start(*flags, data=self.mount)
        client = self.connect(server)
        self.check_whole(client)
        size = self.segment(number).stat().st_size
        begin = self.random.randrange(size // 4, size // 2)
        self.damage_under_load(server, lambda: self.break_disk(number, begin))
        self.assertTrue(server.running(), server.log())
        self.check_quarantine(client, number, others_answered)
        self.check_counts(client)
        # What was lost is lost, until the file is mapped anew.
        self.control.unlink()
        self.check_quarantine(client, number, others_answered)
        self.check_counts(client)
        server.stop()
        self.check_whole(self.connect(self.start(*flags, data=self.mount)))

    def test_in_the_newer_segment(self):
        self.check_disk_errors(1, others_answered=True)

    def test_in_the_older_segment(self):
        self.check_disk_errors(0, others_answered=True)

    def test_without_a_segment_map(self):
        # The filter, which would tell others apart, may lie in the span that is lost.
        self.check_disk_errors(1, '--segment-map-mib-max', '0', others_answered=False)

    def test_what_is_read_to_open_a_table(self):
        """The checksums at a file's end: the daemon does not start, the command line says why."""
        size = self.segment(1).stat().st_size
        self.break_disk(1, size - 8)
        done = support.run([LATCHKEYD, '--data', self.mount, '--listen', '127.0.0.1:0'])
        self.assertEqual(done.code, FAILURE, done.err)
        self.assertIn(str(self.mount / SEGMENTS[1]), done.err)
        done = self.latchkey('get', '--data', self.mount, '--table', 't', self.keys[0].hex(), code=FAILURE)
        self.assertIn(str(self.mount / SEGMENTS[1]), done.err)

    def test_command_line(self):
        """`batch` on a data directory: it opens, since what it reads for that is there."""
        size = self.segment(1).stat().st_size
        self.break_disk(1, size // 3, size * 2 // 3)
        done = support.run([LATCHKEY, 'batch', '--data', self.mount, '--table', 't'],
                           stdin=b''.join(key.hex().encode() + b'\n' for key in self.keys))
        self.assertEqual(done.code, FAILURE, done.err[-1000:])
        damaged = 0
        rows = support.parse_batch(done.out)
        self.assertEqual(len(rows), len(self.keys))
        for key, row in zip(self.keys, rows):
            if row[1:] == ('not-done:damaged-data', None, b''):
                damaged += 1
                continue
            outcome, _, doc_id, value = self.expected.get(key, MISSING)
            right = ('found', doc_id, value) if outcome == FOUND else ('absent', None, b'')
            self.assertEqual(row[1:], right)
        self.assertGreater(damaged, 0)


class CutFilesTest(LostPagesTestCase):

    def check_cut(self, number, *flags, others_answered):
        server = self.start(*flags)
        client = self.connect(server)
        self.check_whole(client)
        whole = self.segment(number).read_bytes()
        cut = self.random.randrange(len(whole) // 2)
        self.damage_under_load(server, lambda: os.truncate(self.segment(number), cut))
        self.assertTrue(server.running(), server.log())
        self.check_quarantine(client, number, others_answered)
        self.check_counts(client)
        self.segment(number).write_bytes(whole)
        self.check_quarantine(client, number, others_answered)
        server.stop()
        self.check_whole(self.connect(self.start(*flags)))

    def test_the_newer_segment(self):
        self.check_cut(1, others_answered=True)

    def test_the_older_segment(self):
        self.check_cut(0, others_answered=True)

    def test_without_a_segment_map(self):
        self.check_cut(1, '--segment-map-mib-max', '0', others_answered=False)

    def test_a_fault_that_is_not_the_files_ends_the_daemon(self):
        server = self.start()
        server.send_signal(signal.SIGBUS)
        self.assertEqual(server.wait(), -signal.SIGBUS)
        self.assertIn('fatal: bus error', server.log())


if __name__ == '__main__':
    unittest.main()
