"""A table changes on disk, and the server takes it over without a stop."""

import json
import os
import pathlib
import shutil
import threading
import unittest

import grpc

import support
from rpc_test_case import ABSENT, BATCH_GET, FOUND, GET, LIST, RpcTestCase
from support import FAILURE, OK

KEYS = [b'key-%05d' % number for number in range(3000)]


def rows(value):
    """All keys with the same value, so that a reply shows which generation each of its rows is of."""
    return b''.join(b'%s %s\n' % (key, value) for key in KEYS)


class ReloadTest(RpcTestCase):

    def build_values(self, value, *flags, table='t'):
        self.build(table, rows(value), '--value-column', 'rest', *flags)

    def status(self, server, table='t'):
        out = self.latchkey('status', '--server', server.address, '--json').out
        return next(each for each in json.loads(out)['tables'] if each['table'] == table)

    def value_of(self, client, table='t'):
        return client.call(GET, table=table, key=KEYS[7]).value

    def tables(self, client):
        return {each.name: each.generation for each in client.call(LIST).tables}

    def test_a_new_generation_serves_by_itself(self):
        self.build_values(b'one')
        server = self.start()
        client = self.connect(server)
        self.assertEqual(self.value_of(client), b'one')
        self.build_values(b'two')
        support.wait_until(lambda: self.value_of(client) == b'two', 'the new generation')
        # One that only adds a segment.
        self.build('t', b'key-00007 three\n', '--value-column', 'rest', '--append')
        support.wait_until(lambda: self.value_of(client) == b'three', 'the appended segment')
        self.assertEqual(client.call(GET, table='t', key=KEYS[8]).value, b'two')
        self.assertEqual(self.tables(client), {'t': 3})

    def test_reload_says_when_it_serves(self):
        self.build_values(b'one')
        server = self.start()
        client = self.connect(server)
        for generation in range(2, 6):
            self.build_values(b'value %d' % generation)
            done = self.latchkey('reload', '--server', server.address, '--table', 't')
            self.assertEqual(done.out, b't: generation %d serves\n' % generation)
            self.assertEqual(self.value_of(client), b'value %d' % generation)
        done = self.latchkey('reload', '--server', server.address, '--table', 'none', code=FAILURE)
        self.assertIn('none', done.err)

    def test_tables_come_and_go(self):
        self.build_values(b'one')
        server = self.start()
        client = self.connect(server)
        self.build_values(b'other', table='u')
        support.wait_until(lambda: self.tables(client) == {'t': 1, 'u': 1}, 'the new table')
        self.assertEqual(self.value_of(client, 'u'), b'other')
        shutil.rmtree(self.data / 't')
        support.wait_until(lambda: self.tables(client) == {'u': 1}, 'the table to go')
        self.assert_fails(grpc.StatusCode.NOT_FOUND, client, GET, table='t', key=KEYS[0])
        # A table of that name is another one: it may begin at generation 1 again.
        self.build_values(b'anew')
        support.wait_until(lambda: self.tables(client) == {'t': 1, 'u': 1}, 'the table to come back')
        self.assertEqual(self.value_of(client), b'anew')

    def test_what_cannot_be_opened_leaves_the_old_one(self):
        self.build_values(b'one')
        server = self.start()
        client = self.connect(server)
        # In another folder, so that it does not serve before it is damaged.
        elsewhere = self.folder / 'elsewhere'
        shutil.copytree(self.data, elsewhere)
        path = self.file('two', rows(b'two'))
        self.latchkey('build', '--data', elsewhere, '--table', 't', '--value-column', 'rest', path)
        segment = elsewhere / 't' / 'g00000002-0.segment'
        good = segment.read_bytes()
        (self.data / 't' / segment.name).write_bytes(good[:1000] + b'\xff' + good[1001:])
        shutil.copy(elsewhere / 't' / 'g00000002.manifest', self.data / 't')
        error = support.wait_until(lambda: self.status(server)['reload_error'], 'the error')
        self.assertIn('g00000002-0.segment', error)
        self.assertEqual(self.value_of(client), b'one')
        done = self.latchkey('reload', '--server', server.address, '--table', 't', code=FAILURE)
        self.assertIn('g00000002-0.segment', done.err)
        server.wait_for_log(' error table not reloaded table=t')
        (self.data / 't' / segment.name).unlink()
        (self.data / 't' / segment.name).write_bytes(good)
        support.wait_until(lambda: self.value_of(client) == b'two', 'the mended generation')
        self.assertEqual(self.status(server)['reload_error'], '')

    def test_files_may_come_in_any_order(self):
        self.build_values(b'one')
        server = self.start()
        client = self.connect(server)
        elsewhere = self.folder / 'elsewhere'
        shutil.copytree(self.data, elsewhere)
        for generation in (2, 3):
            path = self.file('next', rows(b'%d' % generation))
            self.latchkey('build', '--data', elsewhere, '--table', 't', '--value-column', 'rest', path)
            new = [elsewhere / 't' / f'g{generation:08}.manifest',
                   elsewhere / 't' / f'g{generation:08}-0.segment']
            before = self.value_of(client)
            for number, source in enumerate(new if generation == 2 else reversed(new)):
                # As a copy does it: aside, and then renamed.
                aside = self.data / 't' / f'.{source.name}.part'
                shutil.copy(source, aside)
                aside.rename(self.data / 't' / source.name)
                if number == 0:
                    # More than the time between two looks.
                    support.wait_until(
                        lambda: generation == 3 or self.status(server)['reload_error'], 'an error')
                    self.assertEqual(self.value_of(client), before)
            support.wait_until(lambda: self.value_of(client) == b'%d' % generation, 'the copy')

    def test_swaps_under_load(self):
        self.build_values(b'1')
        server = self.start()
        stop = threading.Event()
        seen, wrong = set(), []

        def ask():
            client = self.connect(server)
            while not stop.is_set():
                reply = client.call(BATCH_GET, table='t', keys=KEYS)
                values = {row.value for row in reply.rows}
                if not reply.complete or values != {b'%d' % reply.generation}:
                    wrong.append((reply.generation, values))
                seen.add(reply.generation)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for generation in range(2, 32):
                self.build_values(b'%d' % generation)
                self.latchkey('reload', '--server', server.address, '--table', 't')
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])
        self.assertIn(31, seen)
        self.assertGreater(len(seen), 10)

        def mapped():
            maps = pathlib.Path(f'/proc/{server.pid}/maps').read_text().splitlines()
            return {line.split('/')[-1] for line in maps if '.segment' in line}
        support.wait_until(lambda: mapped() == {'g00000031-0.segment'}, 'the old maps to go')


if __name__ == '__main__':
    unittest.main()
