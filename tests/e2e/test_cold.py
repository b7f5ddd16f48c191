"""Tables that are not in memory: hints while pages are cold, silence when they are not, and what shows it."""

import json
import os
import pathlib
import signal
import time
import unittest

import grpc

import support
from rpc_test_case import ABSENT, BATCH_GET, FOUND, GET, RpcTestCase
from support import FAILURE, LATCHKEY, LATCHKEYD, NOT_FOUND, OK

ROWS = 400_000
VALUE_BYTES = 64  # so that lines have some 30 MB: many pages, and more than one batch touches
BATCH = 4096
STATUS = 'latchkey.v1.Admin/Status'
UNCHECKED = ('--verify-mib-per-s', '0')  # what is read in the background would be in the page cache


def key_of(number):
    return b'%016d' % (number * 7919)


def value_of(number):
    return (b'%d/' % number).ljust(VALUE_BYTES, b'v')


def drop_cache(folder):
    """Takes the files of a table, which nobody maps, out of the page cache."""
    for path in folder.glob('*.segment'):
        with open(path, 'rb') as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class ColdTestCase(RpcTestCase):

    @classmethod
    def setUpClass(cls):
        cls.shared = cls.for_class()
        rows = b''.join(key_of(number) + value_of(number) for number in range(ROWS))
        cls.shared.build('t', rows, '--format', 'fixed', '--key-width', '16', '--value-width',
                         str(VALUE_BYTES))

    def setUp(self):
        super().setUp()
        self.data = self.shared.data
        drop_cache(self.data / 't')

    def status(self, server, table='t'):
        out = self.latchkey('status', '--server', server.address, '--json').out
        return next(each for each in json.loads(out)['tables'] if each['table'] == table)

    def batch(self, client, numbers):
        """Looks rows up, checks the answers, and returns the reply."""
        reply = client.call(BATCH_GET, table='t', report_cost=True,
                            packed_keys={'data': b''.join(key_of(n) for n in numbers), 'width': 16})
        self.assertTrue(reply.complete)
        for number, row in zip(numbers, reply.rows, strict=True):
            self.assertEqual((row.outcome, row.doc_id, row.value), (FOUND, number, value_of(number)))
        return reply


class PrefetchTest(ColdTestCase):

    def numbers(self):
        return [self.random.randrange(ROWS) for _ in range(BATCH)]

    def assert_goes_silent(self, server, client, numbers):
        """The same keys again, until the thread that answers them has learnt that all is in memory."""
        def silent():
            return self.batch(client, numbers).cost.pages_asked == 0
        support.wait_until(silent, 'a batch without hints')
        # And so it stays, whichever thread answers.
        for _ in range(20):
            self.batch(client, numbers)
        asked = int(self.status(server)['pages_asked'])
        for _ in range(20):
            cost = self.batch(client, numbers).cost
            self.assertEqual((cost.pages_asked, cost.pages_read, cost.major_faults), (0, 0, 0))
            self.assertGreaterEqual(cost.places, BATCH)
        self.assertEqual(int(self.status(server)['pages_asked']), asked)

    def test_hints_while_cold_and_silence_when_warm(self):
        server = self.start('--threads', '1', '--cold-threads', '1', *UNCHECKED)
        client = self.connect(server)
        numbers = self.numbers()
        lines = next(each for each in self.status(server)['sections'] if each['section'] == 'lines')
        self.assertLess(lines['resident_percent'], 1)
        self.assertEqual(lines['advice'], 'random')
        cost = self.batch(client, numbers).cost
        # Most pages are asked for once, by the thread that waits for them; the others came beside.
        self.assertGreater(cost.pages_asked, BATCH // 2)
        self.assertGreater(cost.pages_read, BATCH // 2)
        self.assertLess(cost.major_faults, cost.pages_read // 10)
        self.assert_goes_silent(server, client, numbers)
        table = self.status(server)
        self.assertGreater(table['hit_percent'], 50)
        self.assertLess(table['hit_percent'], 100)
        self.assertGreater(table['threads_silent'], 0)

    def test_one_by_one(self):
        server = self.start('--threads', '1', '--cold-threads', '1', *UNCHECKED)
        client = self.connect(server)
        numbers = self.numbers()[:300]
        for _ in range(4):
            for number in numbers:
                reply = client.call(GET, table='t', key=key_of(number))
                self.assertEqual((reply.outcome, reply.value), (FOUND, value_of(number)))
        before = self.status(server)
        self.assertGreater(int(before['pages_read']), 200)
        # More of them than a judgement takes: then no page is asked for any more.
        for _ in range(4):
            for number in numbers:
                client.call(GET, table='t', key=key_of(number))
        after = self.status(server)
        for _ in range(2):
            for number in numbers:
                client.call(GET, table='t', key=key_of(number))
        self.assertEqual(self.status(server)['pages_asked'], after['pages_asked'])
        self.assertEqual(after['pages_read'], before['pages_read'])

    def test_choices(self):
        for choice, asks in (('never', False), ('always', True)):
            with self.subTest(choice):
                drop_cache(self.data / 't')
                server = self.start('--prefetch', choice, *UNCHECKED)
                client = self.connect(server)
                numbers = self.numbers()
                costs = [self.batch(client, numbers).cost for _ in range(4)]
                self.assertEqual([cost.pages_asked > BATCH // 2 for cost in costs], [asks] * 4)
                # Whatever the choice, the status tells what there is.
                table = self.status(server)
                self.assertEqual(int(table['keys']), 4 * BATCH)
                self.assertGreaterEqual(int(table['places']), 4 * BATCH)
                self.assertEqual([each['section'] for each in table['sections']],
                                 ['filter', 'pilots', 'lines'])
                server.stop()

    def test_as_a_user_who_does_not_own_the_files(self):
        if os.geteuid() != 0:
            self.fail('only root can start a server as somebody else')
        program = self.folder / 'latchkeyd'
        program.write_bytes(pathlib.Path(LATCHKEYD).read_bytes())
        program.chmod(0o755)
        self.data.chmod(0o755)
        address = f'unix:{self.folder}/socket'
        self.folder.chmod(0o777)
        server = self.spawn(['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', '--',
                             program, '--data', self.data, '--listen', address, '--threads', '1',
                             '--cold-threads', '1', *UNCHECKED])
        server.wait_for_log(' prefetch table=t .*residency_probe=faults')
        server.wait_for_log(' serving ')
        server.address = address
        client = self.connect(server)
        numbers = self.numbers()
        self.assertGreater(self.batch(client, numbers).cost.pages_asked, BATCH // 2)
        self.assert_goes_silent(server, client, numbers)
        self.assertEqual(self.status(server)['residency_probe'], 'faults')

    def test_the_owner_is_told_what_is_resident(self):
        server = self.start('--warm-up', 'all')
        server.wait_for_log(' prefetch table=t .*residency_probe=(cachestat|mincore)')
        for section in self.status(server)['sections']:
            self.assertGreater(section['resident_percent'], 99, section)
            self.assertIn(section['advice'], ('normal', 'huge'))


class WarmUpTest(ColdTestCase):

    def test_what_is_read(self):
        for what, resident in (('none', []), ('index', ['filter', 'pilots']),
                               ('all', ['filter', 'pilots', 'lines'])):
            with self.subTest(what):
                drop_cache(self.data / 't')
                server = self.start('--warm-up', what, *UNCHECKED)
                server.wait_for_log(f' warmed up table=t what={what} ')
                sections = {each['section']: each['resident_percent']
                            for each in self.status(server)['sections']}
                self.assertEqual([name for name, percent in sections.items() if percent > 99],
                                 resident)
                server.stop()

    def slow_server(self):
        """One that needs many seconds to warm up."""
        server = self.spawn([LATCHKEYD, '--data', self.data, '--listen',
                             f'unix:{self.folder}/socket', '--warm-up', 'all',
                             '--warm-up-mib-per-s', '1'])
        server.address = f'unix:{self.folder}/socket'
        server.wait_for_log(' table opened ')
        return server

    def status_of_all(self, server):
        done = support.run([LATCHKEY, 'status', '--server', server.address, '--json'])
        return json.loads(done.out) if done.code == OK else None

    def test_nothing_is_served_before(self):
        server = self.slow_server()
        status = support.wait_until(lambda: self.status_of_all(server), 'a status')
        self.assertFalse(status['serving'])
        health = support.run([LATCHKEYD, 'healthcheck', '--server', server.address])
        self.assertEqual(health.code, 1)
        done = self.latchkey('get', 'x', '--server', server.address, '--table', 't', code=FAILURE)
        self.assertIn('no table', done.err)  # as it is not open yet
        def progress():
            warm_up = self.status_of_all(server)['warm_up']
            return 0 < int(warm_up['done_bytes']) < int(warm_up['total_bytes'])
        support.wait_until(progress, 'progress')
        self.assertNotIn(' serving ', server.log())

    def test_it_can_be_stopped(self):
        server = self.slow_server()
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)
        self.assertIn(' stopped before it served', server.log())


if __name__ == '__main__':
    unittest.main()
