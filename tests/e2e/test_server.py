"""`latchkeyd`: how it starts, what it refuses to start with, where it listens, and how it ends."""

import os
import re
import resource
import signal
import socket
import subprocess
import unittest

import grpc

import support
from grpc_reflection import HEALTH_SERVING
from http2 import WINDOW_BYTES, RawCall
from rpc_test_case import ABSENT, BATCH_GET, DESCRIBE, FOUND, GET, LIST, RpcTestCase
from support import FAILURE, LATCHKEYD, OK, USAGE, escape_tsv

HEALTH_NOT_SERVING = 2


class ServerTestCase(RpcTestCase):

    def healthcheck(self, address):
        return support.run([LATCHKEYD, 'healthcheck', '--server', address])


class MemoryTest(ServerTestCase):
    """How the tables' files lie in memory: by flags, for all tables and for one, and as reported."""

    def rows(self, first, count=50_000):
        return b''.join(b'key-%08d\n' % number for number in range(first, first + count))

    def test_modes_of_tables(self):
        self.build('a', self.rows(0))
        self.build('b', self.rows(0))
        server = self.start('--memory-mode', 'huge,b=mmap')
        client = self.connect(server)
        huge = client.call(DESCRIBE, table='a')
        self.assertEqual(huge.memory_mode, 'huge')
        mapped = client.call(DESCRIBE, table='b')
        self.assertEqual((mapped.memory_mode, mapped.huge_bytes), ('mmap', 0))
        self.assertIn(f'memory_mode=huge huge_mib={huge.huge_bytes >> 20} ', server.log())
        for table in 'ab':
            self.assertEqual(client.call(GET, table=table, key=b'key-00000007').doc_id, 7)
        shown = self.latchkey('inspect', '--server', server.address, '--table', 'a').out
        self.assertIn(b'memory mode huge, ', shown)

    def test_locked_or_refused_with_the_reason(self):
        self.build('t', self.rows(0))
        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if os.geteuid() == 0 or soft > 1 << 24:
            server = self.start('--memory-mode', 'locked')
            with open(f'/proc/{server.pid}/status', encoding='ascii') as status:
                locked = int(re.search(r'VmLck:\s+(\d+) kB', status.read()).group(1))
            self.assertGreaterEqual(locked << 10, (self.data / 't' / 'g00000001-0.segment').stat().st_size)
            server.stop()
        self.addCleanup(resource.setrlimit, resource.RLIMIT_MEMLOCK, (soft, hard))
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65_536, hard))
        done = self.run_as_nobody(LATCHKEYD, '--data', self.data, '--listen', '127.0.0.1:0',
                                  '--memory-mode', 'locked')
        self.assertEqual(done.code, FAILURE)
        self.assertRegex(done.err, 'cannot lock .*g00000001-0.segment in memory.*RLIMIT_MEMLOCK')

    def test_segment_map_and_its_limit(self):
        self.build('t', self.rows(0))
        self.build('t', self.rows(40_000), '--append')
        for flags, has_map in ((), True), (('--segment-map-mib-max', '0'), False):
            server = self.start(*flags)
            client = self.connect(server)
            table = client.call(DESCRIBE, table='t')
            self.assertEqual(table.segment_map_bytes > 0, has_map)
            self.assertEqual('a segment map takes' in table.segment_map_missing, not has_map)
            self.assertEqual('has no segment map' in server.log(), not has_map)
            for number, doc_id in (7, 7), (39_999, 39_999), (40_000, 0), (89_999, 49_999):
                row = client.call(GET, table='t', key=b'key-%08d' % number)
                self.assertEqual((row.outcome, row.doc_id), (FOUND, doc_id))
            self.assertEqual(client.call(GET, table='t', key=b'key-00090000').outcome, ABSENT)
            server.stop()

    def test_flags_that_are_wrong(self):
        for mode in 'large', 't=', '=x', 't=large':
            done = support.run([LATCHKEYD, '--data', self.data, '--memory-mode', mode])
            self.assertEqual(done.code, USAGE)
            self.assertIn('expected mmap, huge or locked', done.err)


class StartTest(ServerTestCase):

    def refuse(self, *arguments, code=FAILURE):
        """What a daemon that can't start says; it must end by itself."""
        done = support.run([LATCHKEYD, *arguments])
        self.assertEqual((done.code, done.out), (code, b''), done.err)
        self.assertNotIn('serving', done.err)
        return done.err

    def refuse_data(self):
        return self.refuse('--data', self.data, '--listen', '127.0.0.1:0')

    def test_no_data_directory(self):
        self.assertIn(f'{self.data}: No such file or directory', self.refuse_data())

    def test_no_table(self):
        self.data.mkdir()
        self.assertIn(f'{self.data} holds no table', self.refuse_data())
        (self.data / 'not-a-table').mkdir()
        (self.data / 'a-file').write_bytes(b'')
        self.assertIn('--allow-empty', self.refuse_data())

    def test_allow_empty(self):
        self.data.mkdir()
        server = self.start('--allow-empty')
        client = self.connect(server)
        self.assertEqual(len(client.call(LIST).tables), 0)
        self.assertEqual(self.healthcheck(server.address).code, OK)
        self.assert_fails(grpc.StatusCode.NOT_FOUND, client, GET, table='t', key=b'x')

    def test_damaged_segment(self):
        self.build('t', b'a\nb\n')
        segment = self.data / 't' / 'g00000001-0.segment'
        whole = segment.read_bytes()
        for damaged in (b'', whole[:4095], whole[:-1], bytes(len(whole)), b'\x7fELF' + whole[4:],
                        whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
            segment.write_bytes(damaged)
            self.assertIn(str(segment), self.refuse_data())
        segment.unlink()
        self.assertIn(f'{segment}: No such file', self.refuse_data())

    def test_damaged_manifest(self):
        self.build('t', b'a\n')
        manifest = self.data / 't' / 'g00000001.manifest'
        whole = manifest.read_bytes()
        for damaged in (b'', whole[:-1], whole.replace(b'raw', b'hex'), bytes(len(whole))):
            manifest.write_bytes(damaged)
            self.assertIn(str(manifest), self.refuse_data())

    def test_one_damaged_table_among_good_ones(self):
        self.build('good', b'a\n')
        self.build('bad', b'a\n')
        (self.data / 'bad' / 'g00000001.manifest').write_bytes(b'')
        self.assertIn(f'{self.data}/bad/g00000001.manifest', self.refuse_data())

    def test_a_folder_that_may_not_be_read(self):
        self.build('t', b'a\n')
        (self.data / 't').chmod(0o700 if os.geteuid() == 0 else 0)
        done = self.run_as_nobody(LATCHKEYD, '--data', self.data, '--listen', '127.0.0.1:0')
        (self.data / 't').chmod(0o755)
        self.assertEqual(done.code, FAILURE)
        self.assertIn(f'{self.data}/t: Permission denied', done.err)

    def test_addresses_that_cannot_be_listened_on(self):
        self.build('t', b'a\n')
        first = self.start()
        for address in (first.address, '192.0.2.1:0', 'no.such.host.invalid:0', 'unix:/proc/none/socket',
                        'nonsense'):
            with self.subTest(address):
                error = self.refuse('--data', self.data, '--listen', f'127.0.0.1:0,{address}')
                self.assertIn(f'cannot listen on {address}', error)
        self.assertEqual(self.healthcheck(first.address).code, OK)

    def test_usage_errors(self):
        self.build('t', b'a\n')
        for arguments in ([], ['--frobnicate'], ['--data'], ['frobnicate'], ['--threads', 'many'],
                          ['--threads', '-1'], ['--batch-keys-max', '0'], ['--batch-keys-max', '65537'],
                          ['--reply-bytes-max', '0'], ['--queue-max', '0'], ['--drain-s', '-1'],
                          ['--log-level', 'loud'], ['healthcheck', '--frobnicate']):
            with self.subTest(arguments):
                if arguments and arguments[0] not in ('--data', 'healthcheck'):
                    arguments = ['--data', self.data, *arguments]
                self.assertIn('--help', self.refuse(*arguments, code=USAGE))

    def test_flags_from_the_environment(self):
        self.build('t', b'a\n')
        environment = dict(os.environ, LATCHKEY_DATA=str(self.data), LATCHKEY_LISTEN='127.0.0.1:0')
        server = self.spawn([LATCHKEYD], env=environment, stdin=subprocess.DEVNULL)
        address = server.wait_for_log(r' serving address=(\S+)').group(1)
        self.latchkey('get', '--server', address, '--table', 't', 'a')

    def test_log_is_one_line_an_event(self):
        self.build('t', b'a\nb\n')
        server = self.start()
        server.stop()
        lines = server.log().splitlines()
        for line in lines:
            self.assertRegex(line, r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d info \S')
        self.assertIn(' table opened table=t generation=1 segments=1 rows=2 ', lines[0])
        self.assertEqual([line.split(' info ')[1].split()[0] for line in lines],
                         ['table', 'warmed', 'prefetch', 'serving', 'draining', 'stopped'])


class AddressesTest(ServerTestCase):

    def test_several_addresses_and_a_unix_socket(self):
        self.build('t', b'a\n')
        path = self.folder / 'socket'
        server = self.start(listen=f'127.0.0.1:0,unix:{path},[::1]:0' if has_ipv6() else
                            f'127.0.0.1:0,unix:{path}')
        count = 3 if has_ipv6() else 2
        addresses = support.wait_until(lambda: self.addresses_in(server.log(), count), 'its addresses')
        for address in addresses:
            self.latchkey('get', '--server', address, '--table', 't', 'a')
            self.assertEqual(self.healthcheck(address).code, OK)
        server.stop()
        for address in addresses:
            self.latchkey('get', '--server', address, '--table', 't', 'a', code=FAILURE)
        # The name is free for the next server.
        again = self.start(listen=f'unix:{path}')
        self.latchkey('get', '--server', again.address, '--table', 't', 'a')

    def addresses_in(self, log, count):
        addresses = [line.split('address=')[1] for line in log.splitlines() if ' serving address=' in line]
        return addresses if len(addresses) == count else None

    def test_a_server_that_was_killed_leaves_a_socket_that_the_next_one_takes(self):
        self.build('t', b'a\n')
        path = self.folder / 'socket'
        killed = self.start(listen=f'unix:{path}')
        killed.kill()
        server = self.start(listen=f'unix:{path}')
        self.latchkey('get', '--server', server.address, '--table', 't', 'a')


def has_ipv6():
    try:
        with socket.create_server(('::1', 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class HealthTest(ServerTestCase):

    def free_port(self):
        """A port that nobody listens on, and that the system gives to nobody who asks for any port."""
        while True:
            port = self.random.randrange(20_000, 30_000)
            try:
                socket.create_server(('127.0.0.1', port)).close()
                return port
            except OSError:
                continue

    def test_before_while_and_after(self):
        self.build('t', b'a\n')
        address = f'127.0.0.1:{self.free_port()}'
        done = self.healthcheck(address)
        self.assertEqual((done.code, done.out), (1, b''))
        self.assertIn(address, done.err)
        server = self.start(listen=address)
        done = self.healthcheck(address)
        self.assertEqual(done, (OK, b'', ''))
        client = self.connect(server)
        self.assertEqual(client.health(), HEALTH_SERVING)
        self.assertEqual(client.health('latchkey.v1.Lookup'), HEALTH_SERVING)
        with self.assertRaises(grpc.RpcError) as caught:
            client.health('no.such.Service')
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        server.stop()
        self.assertEqual(self.healthcheck(address).code, 1)

    def test_a_server_that_never_answers(self):
        with socket.create_server(('127.0.0.1', 0)) as silent:
            self.assertEqual(self.healthcheck(f'127.0.0.1:{silent.getsockname()[1]}').code, 1)


class DrainTest(ServerTestCase):
    """A call is held in flight by leaving its reply unread."""

    def setUp(self):
        super().setUp()
        self.values = {b'k%d' % i: self.random.randbytes(1000) for i in range(1000)}
        content = b''.join(key + b'\t' + escape_tsv(value) + b'\n' for key, value in self.values.items())
        self.build('t', content, '--format', 'tsv', '--value-column', '2')

    def hold_a_call(self, server, client):
        request = client.message('latchkey.v1.BatchGetRequest')(table='t', keys=list(self.values))
        call = RawCall(server.address, BATCH_GET, request.SerializeToString())
        self.addCleanup(call.close)
        call.read_until(WINDOW_BYTES)
        self.assertFalse(call.ended)
        return call

    def test_a_call_in_flight_is_finished(self):
        server = self.start('--drain-s', 3600)
        client = self.connect(server)
        call = self.hold_a_call(server, client)
        server.send_signal(signal.SIGTERM)
        server.wait_for_log('draining signal=15')
        # It takes nothing new, and says so.
        support.wait_until(lambda: self.healthcheck(server.address).code == 1, 'not serving any more')
        self.assertEqual(client.health(), HEALTH_NOT_SERVING)
        self.assert_fails(grpc.StatusCode.UNAVAILABLE, client, GET, 'shutting down', table='t', key=b'k1')
        self.assertTrue(server.running())
        message, status = call.finish()
        self.assertEqual(status, 0)
        reply = client.message('latchkey.v1.BatchGetResponse').FromString(message)
        self.assertEqual([row.value for row in reply.rows], list(self.values.values()))
        self.assertEqual(server.wait(), OK)
        self.assertFalse(server.port_is_open())
        self.assertIn('stopped', server.log())

    def test_an_idle_connection_does_not_hold_it_up(self):
        server = self.start('--drain-s', 3600)
        client = self.connect(server)
        request = client.message('latchkey.v1.GetRequest')(table='t', key=b'k1').SerializeToString()
        idle = RawCall(server.address, GET, request)
        self.addCleanup(idle.close)
        idle.finish()
        # It stays open and never notices that it is asked to go; gRPC by itself would wait for it for 20 s.
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(timeout_s=15), OK)
        self.assertFalse(server.port_is_open())

    def test_a_call_that_never_ends_is_cut_off(self):
        for seconds in (0, 1):
            server = self.start('--drain-s', seconds)
            self.hold_a_call(server, self.connect(server))
            server.stop()
            self.assertFalse(server.port_is_open())

    def test_interrupt_drains_too(self):
        server = self.start()
        server.send_signal(signal.SIGINT)
        self.assertEqual(server.wait(), OK)
        self.assertIn('draining signal=2', server.log())

    def test_calls_meanwhile_are_answered_or_refused_never_wrong(self):
        server = self.start()
        client = self.connect(server)
        calls = [client.future(BATCH_GET, table='t', keys=list(self.values)) for _ in range(50)]
        calls[0].result()
        server.send_signal(signal.SIGTERM)
        answered = 0
        for call in calls:
            try:
                reply = call.result()
            except grpc.RpcError as error:
                self.assertIn(error.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED))
            else:
                answered += 1
                self.assertEqual([row.value for row in reply.rows], list(self.values.values()))
        self.assertGreater(answered, 0)
        self.assertEqual(server.wait(), OK)


if __name__ == '__main__':
    unittest.main()
