"""Generations come as fast as they can be made, while clients ask without pause: no reply is wrong, no call fails.

It takes 10 s. The long form, of a minute or more:

    SWAP_LOAD_SECONDS=60 /usr/bin/python3 tests/e2e/test_swap_load.py -v
"""

import array
import collections
import itertools
import json
import os
import pathlib
import random
import re
import sys
import threading
import time
import unittest

import support
from rpc_test_case import ABSENT, BATCH_GET, FOUND, GET, LIST, PACKED, ROWS, RpcTestCase

SECONDS = float(os.environ.get('SWAP_LOAD_SECONDS', 10))
RELOAD = 'latchkey.v1.Admin/Reload'

KEYS = 6000
NEVER = 600  # more keys, that are never there
BATCH, BATCHES = 500, 8
SEQUENTIAL_CLIENTS, PIPELINED_CLIENTS, CALLS_IN_FLIGHT = 3, 2, 6
# It goes on until there were so many; then nothing shows by luck.
SWAPS_MIN, SEEN_MIN, REPLIES_MIN, CALLS_OF_A_FORM_MIN = 60, 40, 1000, 100
RSS_GROWTH_KIB_MAX = 48 << 10

OPERATIONS = {'append': 8, 'delete': 5, 'merge': 2, 'merge --policy tiered': 3, 'rollback': 3, 'build': 2, 'gc': 6}


class Table:
    """A table whose content in every generation is known. One thread changes it, others look at its contents.

    A content tells for each key by which change it was written last; 0: it is not there.
    """

    def __init__(self, test, name, rng):
        self.test, self.name, self.rng = test, name, rng
        self.contents = {}  # of generations, each before it is on disk
        self.published = 0  # the newest generation whose command has ended
        self.there = []  # generations that gc has left
        self.done = collections.Counter()
        self.batches = [rng.sample(range(KEYS + NEVER), BATCH) for _ in range(BATCHES)]
        self._changes = 0
        self._expected = {}

    def key(self, index):
        if self.name == 'bytes':
            return b'key-%d' % (index * 7919)
        return (index * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, 'big')

    def text(self, index):
        key = self.key(index)
        return key if self.name == 'bytes' else b'%d' % int.from_bytes(key, 'big')

    def row(self, index, change):
        """Doc id and value."""
        value = {'bare': b'', 'fixed': b'%04x%04x' % (change & 0xFFFF, index),
                 'bytes': b'%d of %d %s' % (change, index, b'.' * (index * 7 % 90))}[self.name]
        return change * KEYS + index, value

    def packed_keys(self, batch):
        keys = [self.key(index) for index in batch]
        form = {'lengths': [len(key) for key in keys]} if self.name == 'bytes' else {'width': 8}
        return {'data': b''.join(keys), **form}

    def expected(self, generation, number):
        """The packed answer to a batch: outcomes, doc ids, values, their lengths."""
        if (generation, number) not in self._expected:
            content = self.contents[generation]
            rows = [self.row(index, content[index]) if content[index] else (0, b'')
                    for index in self.batches[number]]
            self._expected[generation, number] = (
                bytes(FOUND if content[index] else ABSENT for index in self.batches[number]),
                [doc_id for doc_id, _ in rows], b''.join(value for _, value in rows),
                [] if self.name == 'bare' else [len(value) for _, value in rows])
        return self._expected[generation, number]

    # --- changes -------------------------------------------------------------------------------------------------

    def command(self, name, *arguments, stdin=b''):
        json_flag = [] if name == 'rollback' else ['--json']  # which only has one thing to say
        done = self.test.latchkey(*name.split(), '--data', self.test.data, '--table', self.name, *json_flag,
                                  *arguments, stdin=stdin)
        return json.loads(done.out) if json_flag else {
            'generation': int(re.search(rb': generation (\d+) has', done.out).group(1))}

    def publish(self, content, name, *arguments, stdin=b''):
        """Runs a command that makes the next generation, of that content, if it makes one."""
        generation = self.published + 1
        self.contents[generation] = content
        done = self.command(name, *arguments, stdin=stdin)
        if done['generation'] == generation:
            self.published = generation
            self.there.append(generation)
        elif done['generation'] != self.published or not name.startswith('merge'):
            raise AssertionError(f'{name} made generation {done["generation"]} after {self.published}')

    def write(self, content, count, *flags):
        self._changes += 1
        content = content[:]
        indexes = self.rng.sample(range(KEYS), count)
        for index in indexes:
            content[index] = self._changes
        columns = ['--id-column', 1, '--key-column', 2, '--key-kind', 'text' if self.name == 'bytes' else 'u64']
        columns += [] if self.name == 'bare' else ['--value-column', 3]
        columns += ['--value-width', 8] if self.name == 'fixed' else []
        lines = (b'%d\t%s\t%s\n' % (doc_id, self.text(index), value) for index in indexes
                 for doc_id, value in [self.row(index, self._changes)])
        self.publish(content, 'build', '--format', 'tsv', *columns, *flags, '-', stdin=b''.join(lines))

    def change(self):
        content = self.contents.get(self.published)
        operation = self.rng.choices(list(OPERATIONS), list(OPERATIONS.values()))[0] if content else 'build'
        if operation == 'build':
            self.write(array.array('I', bytes(4 * (KEYS + NEVER))), KEYS * 9 // 10)
        elif operation == 'append':
            self.write(content, self.rng.randrange(1, 400), '--append')
        elif operation == 'delete':
            here = [index for index in range(KEYS) if content[index]]
            gone = self.rng.sample(here, min(len(here), self.rng.randrange(1, 200)))
            left = content[:]
            for index in gone:
                left[index] = 0
            keys = b''.join(self.text(index) + b'\n' for index in [*gone, KEYS])  # one that is not there
            self.publish(left, 'delete', '-', stdin=keys)
        elif operation.startswith('merge'):
            self.publish(content, operation)
        elif operation == 'rollback' and len(self.there) > 1:
            to = self.rng.choice(self.there[:-1])
            self.publish(self.contents[to], 'rollback', '--to', to)
        elif operation == 'gc':
            removed = set(self.command('gc', '--keep', self.rng.randrange(1, 4))['removed'])
            self.there = [generation for generation in self.there if generation not in removed]
        else:
            return
        self.done[operation] += 1


class SwapLoadTest(RpcTestCase):

    def setUp(self):
        super().setUp()
        self.tables = [Table(self, name, random.Random(self.random.random()))
                       for name in ('fixed', 'bytes', 'bare')]
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.wrong = []
        self.calls = collections.Counter()
        self.seen = set()  # (table, generation)

    # --- what the threads do -------------------------------------------------------------------------------------

    def in_thread(self, what):
        def loop():
            try:
                what()
            except Exception as error:  # also of an RPC: none may fail
                self.report(f'{type(error).__name__}: {error}')
        return threading.Thread(target=loop)

    def report(self, message):
        with self.lock:
            self.wrong.append(message)
        self.stop.set()

    def note(self, form, table, generation):
        with self.lock:
            self.calls[form] += 1
            self.seen.add((table.name, generation))

    def check_packed(self, table, number, reply):
        rows = reply.packed_rows
        got = rows.outcomes, list(rows.doc_ids_32), rows.values, list(rows.value_lengths)
        want = table.expected(reply.generation, number)
        if got != want or not reply.complete:
            first = next((i for i in range(BATCH) if got[0][i:i + 1] != want[0][i:i + 1]
                          or got[1][i:i + 1] != want[1][i:i + 1]), 'values')
            self.report(f'{table.name}, generation {reply.generation}: packed rows differ at {first}')
        self.note('packed', table, reply.generation)

    def check_rows(self, table, number, reply):
        outcomes, doc_ids, values, lengths = table.expected(reply.generation, number)
        ends = list(itertools.accumulate(lengths or [0] * BATCH, initial=0))
        want = [(outcome, 0, doc_id, values[begin:end])
                for outcome, doc_id, begin, end in zip(outcomes, doc_ids, ends, ends[1:])]
        got = [(row.outcome, row.reason, row.doc_id, row.value) for row in reply.rows]
        if got != want or not reply.complete:
            self.report(f'{table.name}, generation {reply.generation}: rows differ: ' + str(next(
                ((i, one, other) for i, (one, other) in enumerate(zip(got, want)) if one != other), len(got))))
        self.note('rows', table, reply.generation)

    def check_get(self, table, index, reply):
        change = table.contents[reply.generation][index]
        doc_id, value = table.row(index, change) if change else (0, b'')
        got = reply.outcome, reply.reason, reply.doc_id, reply.value, reply.value_size
        if got != (FOUND if change else ABSENT, 0, doc_id, value, len(value)):
            self.report(f'{table.name}, generation {reply.generation}: key {index} is {got}')
        self.note('get', table, reply.generation)

    def ask_one_by_one(self, server, rng):
        """A client that never goes back in time."""
        client = self.connect(server)
        newest = collections.Counter()
        while not self.stop.is_set():
            table = rng.choice(self.tables)
            number = rng.randrange(BATCHES)
            form = rng.choice(('packed', 'packed', 'rows', 'get'))
            if form == 'get':
                index = rng.randrange(KEYS + NEVER)
                reply = client.call(GET, table=table.name, key=table.key(index))
                self.check_get(table, index, reply)
            elif form == 'rows':
                keys = [table.key(index) for index in table.batches[number]]
                reply = client.call(BATCH_GET, table=table.name, keys=keys, answer_form=ROWS)
                self.check_rows(table, number, reply)
            else:
                reply = client.call(BATCH_GET, table=table.name, answer_form=PACKED,
                                    packed_keys=table.packed_keys(table.batches[number]))
                self.check_packed(table, number, reply)
            if reply.generation < newest[table]:
                self.report(f'{table.name}: generation {reply.generation} after {newest[table]}')
            newest[table] = reply.generation

    def ask_pipelined(self, server, rng):
        """A client with several calls under way, so that some of them are when a generation goes."""
        client = self.connect(server)
        under_way = collections.deque()
        while not self.stop.is_set() or under_way:
            if not self.stop.is_set():
                table, number = rng.choice(self.tables), rng.randrange(BATCHES)
                under_way.append((table, number, client.future(
                    BATCH_GET, table=table.name, answer_form=PACKED,
                    packed_keys=table.packed_keys(table.batches[number]))))
            if len(under_way) == CALLS_IN_FLIGHT or self.stop.is_set():
                table, number, future = under_way.popleft()
                self.check_packed(table, number, future.result())

    def have_it_reloaded(self, server, rng):
        """`Reload` never returns less than what was published before it."""
        client = self.connect(server)
        while not self.stop.wait(0.01):
            table = rng.choice(self.tables)
            least = table.published
            generation = client.call(RELOAD, table=table.name).generation
            if generation < least:
                self.report(f'{table.name}: reload says {generation} though {least} is published')
            with self.lock:
                self.calls['reload'] += 1

    def change(self, table):
        while not self.stop.is_set():
            table.change()

    # --- what is seen of the server ------------------------------------------------------------------------------

    def resident_kib(self, server):
        status = pathlib.Path(f'/proc/{server.pid}/status').read_text()
        return int(re.search(r'VmRSS:\s+(\d+)', status).group(1))

    def current_files(self):
        """Segments of the newest generations, and their manifests, which a reader holds."""
        segments, manifests = set(), set()
        for table in self.tables:
            folder = self.data / table.name
            for segment in table.command('inspect')['segments']:
                segments.add(str(folder / segment['file']))
            manifests.add(str(folder / f'g{table.published:08}.manifest'))
        return segments, manifests

    def mapped(self, server):
        lines = pathlib.Path(f'/proc/{server.pid}/maps').read_text().splitlines()
        return {line[line.index(str(self.data)):] for line in lines if str(self.data) in line}

    def opened(self, server):
        names = set()
        for link in pathlib.Path(f'/proc/{server.pid}/fd').iterdir():
            try:
                names.add(os.readlink(link))
            except FileNotFoundError:
                pass  # closed meanwhile
        return {name for name in names if name.startswith(f'{self.data}/')}

    def enough(self, server):
        swaps = server.log().count(' table opened ')
        with self.lock:
            return (swaps >= SWAPS_MIN and len(self.seen) >= SEEN_MIN and
                    sum(self.calls.values()) >= REPLIES_MIN and len(self.calls) == 4 and
                    min(self.calls.values()) >= CALLS_OF_A_FORM_MIN and
                    all(set(table.done) == set(OPERATIONS) for table in self.tables))

    # --- the test ------------------------------------------------------------------------------------------------

    def test_no_reply_is_wrong(self):
        for table in self.tables:
            table.change()
        server = self.start()
        asks = [self.ask_one_by_one] * SEQUENTIAL_CLIENTS + [self.ask_pipelined] * PIPELINED_CLIENTS
        threads = [self.in_thread(lambda ask=ask, rng=random.Random(self.random.random()): ask(server, rng))
                   for ask in [*asks, self.have_it_reloaded]]
        threads += [self.in_thread(lambda table=table: self.change(table)) for table in self.tables]
        begin = time.monotonic()
        resident = []
        for thread in threads:
            thread.start()
        try:
            while not self.stop.wait(0.2):
                resident.append(self.resident_kib(server))
                elapsed = time.monotonic() - begin
                if elapsed > SECONDS and self.enough(server):
                    break
                # Reloads give way, so that where other tests keep the machine busy they are slow.
                if elapsed > SECONDS + 6 * support.TIMEOUT_S:
                    self.report(f'too little came of it: {self.calls} {len(self.seen)}')
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(self.wrong[:5], [])
        swaps = server.log().count(' table opened ')
        third = len(resident) // 3
        print(f'\n{time.monotonic() - begin:.0f} s: {sum(t.published for t in self.tables)} generations '
              f'published, {swaps} of them served, {len(self.seen)} seen in replies; {dict(self.calls)}; '
              f'{dict(sum((t.done for t in self.tables), collections.Counter()))}; RSS {min(resident) >> 10} to '
              f'{max(resident) >> 10} MiB, last {resident[-1] >> 10}', file=sys.stderr)
        self.assertTrue(server.running())
        # Each generation that was served has a map of its own, which would show.
        self.assertLess(max(resident[-third:]), max(resident[:third]) + RSS_GROWTH_KIB_MAX)
        self.check_end(server)

    def check_end(self, server):
        newest = {table.name: table.published for table in self.tables}
        client = self.connect(server)
        support.wait_until(
            lambda: {each.name: each.generation for each in client.call(LIST).tables} == newest, 'the newest')
        for table, number in itertools.product(self.tables, range(BATCHES)):
            reply = client.call(BATCH_GET, table=table.name, answer_form=PACKED,
                                packed_keys=table.packed_keys(table.batches[number]))
            self.assertEqual(reply.generation, table.published)
            self.check_packed(table, number, reply)
        self.assertEqual(self.wrong, [])
        segments, manifests = self.current_files()
        support.wait_until(lambda: self.mapped(server) == segments, 'the old maps to go')
        support.wait_until(lambda: self.opened(server) == segments | manifests, 'the old files to be closed')
        # Nobody holds an old generation either.
        for table in self.tables:
            done = table.command('gc', '--keep', 1)
            self.assertEqual((done['kept'], done['held']), ([table.published], []))
            self.latchkey('verify', '--data', self.data, '--table', table.name)
        server.stop()


if __name__ == '__main__':
    unittest.main()
