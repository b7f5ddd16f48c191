"""A server in a control group whose memory does not take the data, as in a container with a limit."""

import json
import os
import pathlib
import re
import signal
import unittest

import support
from rpc_test_case import ABSENT, BATCH_GET, FOUND, RpcTestCase
from support import LATCHKEYD
from test_cold import drop_cache

ROWS = 2_000_000
VALUE_BYTES = 64
LIMIT_BYTES = 96 << 20  # the lines alone have twice as many
BATCHES = 80
BATCH = 4096


def key_of(number):
    return b'%016d' % (number * 7919)


def value_of(number):
    return (b'%d/' % number).ljust(VALUE_BYTES, b'v')


class MemoryGroup:
    """A control group of its own, version 1 or 2, with a limit. Only root can make one."""

    def __init__(self, name, limit_bytes):
        root = pathlib.Path('/sys/fs/cgroup')
        self.version = 1 if (root / 'memory').is_dir() else 2
        if self.version == 2:
            (root / 'cgroup.subtree_control').write_text('+memory')
        self.path = (root / 'memory' if self.version == 1 else root) / name
        self.path.mkdir()
        self.write('memory.limit_in_bytes' if self.version == 1 else 'memory.max', limit_bytes)

    def write(self, name, value):
        (self.path / name).write_text(str(value))

    def read(self, name):
        return (self.path / name).read_text()

    def field(self, name, field):
        return int(dict(line.split() for line in self.read(name).splitlines())[field])

    def refusals(self):
        """How often the limit was met."""
        if self.version == 1:
            return int(self.read('memory.failcnt'))
        return self.field('memory.events', 'max')

    def kills(self):
        return self.field('memory.oom_control' if self.version == 1 else 'memory.events', 'oom_kill')

    def procs(self):
        return self.path / 'cgroup.procs'

    def remove(self):
        support.wait_until(lambda: not self.procs().read_text(), 'the group to be left')
        self.path.rmdir()


class MemoryGroupTest(RpcTestCase):

    def test_more_data_than_memory(self):
        rows = b''.join(key_of(number) + value_of(number) for number in range(ROWS))
        self.build('t', rows, '--format', 'fixed', '--key-width', '16', '--value-width',
                   str(VALUE_BYTES))
        del rows
        data_bytes = sum(path.stat().st_size for path in (self.data / 't').glob('*.segment'))
        self.assertGreater(data_bytes, 2 * LIMIT_BYTES * 0.9)
        # What is cached already is counted where it was read first: outside.
        drop_cache(self.data / 't')
        group = MemoryGroup(f'latchkey-test-{os.getpid()}', LIMIT_BYTES)
        self.addCleanup(group.remove)
        server = self.spawn(['sh', '-c', 'echo $$ > "$0" && exec "$@"', group.procs(), LATCHKEYD,
                             '--data', self.data, '--listen', f'unix:{self.folder}/socket'])
        server.address = server.wait_for_log(r' serving address=(\S+)').group(1)
        client = self.connect(server)
        read = faults = asked = 0
        thrashing = False
        for _ in range(BATCHES):
            numbers = [self.random.randrange(ROWS + ROWS // 10) for _ in range(BATCH)]
            reply = client.call(BATCH_GET, table='t', report_cost=True,
                                packed_keys={'data': b''.join(map(key_of, numbers)), 'width': 16})
            self.assertTrue(reply.complete)
            for number, row in zip(numbers, reply.rows, strict=True):
                if number < ROWS:
                    self.assertEqual((row.outcome, row.doc_id, row.value),
                                     (FOUND, number, value_of(number)))
                else:
                    self.assertEqual(row.outcome, ABSENT)
            read += reply.cost.pages_read
            asked += reply.cost.pages_asked
            faults += reply.cost.major_faults
            out = self.latchkey('status', '--server', server.address, '--json').out
            thrashing |= json.loads(out)['tables'][0]['thrashing']
        # More was read than the group can hold, so pages went and came again.
        self.assertGreater(read * 4096, LIMIT_BYTES)
        self.assertGreater(asked, read // 2)
        self.assertLess(faults, read // 10)
        self.assertGreater(group.refusals(), 0)
        # Which the server noticed, where the kernel tells what it evicted.
        if re.search('residency_probe=cachestat', server.log()):
            self.assertTrue(thrashing)
            self.assertIn(' thrashing table=t begins ', server.log())
        self.assertEqual(group.kills(), 0)
        self.assertTrue(server.running())
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)


if __name__ == '__main__':
    unittest.main()
