"""What `latchkeyd` answers: limits, values, descriptions, counts, and damaged data."""

import concurrent.futures
import os
import pathlib
import random
import struct
import unittest

import grpc

import support
from grpc_reflection import ReflectedClient
from http2 import RawCall
from rpc_test_case import (ABSENT, BATCH_GET, DAMAGED_DATA, DESCRIBE, FOUND, GET, LIST, NOT_DONE, PACKED,
                           REPLY_BUDGET, ROWS, RpcTestCase)
from support import FAILURE, escape_tsv


class LimitsTest(RpcTestCase):

    def setUp(self):
        super().setUp()
        self.build('hex', b'00\n11\n' + b'ab' * 32_766 + b'\n', '--key-kind', 'hex')
        self.build('uuid', b'00112233-4455-6677-8899-aabbccddeeff\n', '--key-kind', 'uuid')
        self.build('u64', b'7\n', '--key-kind', 'u64')
        self.server = self.start()
        self.client = self.connect(self.server)

    def counted(self, table='hex'):
        return self.client.call(DESCRIBE, table=table).counts.keys

    def test_too_many_keys_are_refused_before_any_is_decoded(self):
        forms = [{'keys': [b''] + [b'\x00'] * 4096},
                 {'text_keys': ['not hexadecimal'] + ['00'] * 4096},
                 {'packed_keys': {'data': bytes(40_000 + 4096), 'lengths': [40_000] + [1] * 4096}},
                 {'packed_keys': {'data': bytes(4097), 'width': 1}},
                 {'packed_keys': {'data': bytes(4097 * 3), 'width': 3}}]
        for table in ('hex', 'uuid', 'no such table'):
            for fields in forms:
                self.assert_fails(grpc.StatusCode.RESOURCE_EXHAUSTED, self.client, BATCH_GET,
                                  'at most 4096 keys, got 4097', table=table, **fields)
        # The same keys, but one: now the malformed one shows.
        self.assert_fails(grpc.StatusCode.INVALID_ARGUMENT, self.client, BATCH_GET, r'text_keys\[0\]',
                          table='hex', text_keys=forms[1]['text_keys'][:-1])
        self.assertEqual(self.counted(), 0)

    def test_the_limit_of_keys_can_be_set(self):
        client = self.connect(self.start('--batch-keys-max', 3))
        self.assertEqual(len(client.call(BATCH_GET, table='hex', keys=[b'\0'] * 3).rows), 3)
        self.assert_fails(grpc.StatusCode.RESOURCE_EXHAUSTED, client, BATCH_GET, table='hex', keys=[b'\0'] * 4)

    def test_a_full_batch_of_long_keys(self):
        keys = [self.random.randbytes(1024) for _ in range(4096)]
        self.build('long', b''.join(key.hex().encode() + b'\n' for key in keys[::2]), '--key-kind', 'hex')
        client = self.connect(self.start())
        expected = [FOUND, ABSENT] * 2048
        for fields in ({'keys': keys}, {'packed_keys': {'data': b''.join(keys), 'width': 1024}},
                       {'packed_keys': {'data': b''.join(keys), 'lengths': [1024] * 4096}}):
            reply = client.call(BATCH_GET, table='long', **fields)
            self.assertEqual([row.outcome for row in reply.rows], expected)
            self.assertTrue(reply.complete)

    def test_the_longest_key(self):
        key = b'\xab' * 32_766
        for fields in ({'key': key}, {'text_key': key.hex()}, {'text_key': key.hex().upper()}):
            self.assertEqual(self.client.call(GET, table='hex', **fields).outcome, FOUND)
        for fields in ({'keys': [key]}, {'text_keys': [key.hex()]},
                       {'packed_keys': {'data': key, 'width': len(key)}}):
            self.assertEqual(self.client.call(BATCH_GET, table='hex', **fields).rows[0].outcome, FOUND)
        for fields in ({'key': key + b'\0'}, {'text_key': key.hex() + '00'}):
            self.assert_fails(grpc.StatusCode.INVALID_ARGUMENT, self.client, GET, '32766', table='hex', **fields)
        # Also where the limit of a batch leaves the least room.
        small = self.connect(self.start('--batch-keys-max', 1))
        self.assertEqual(small.call(GET, table='hex', text_key=key.hex()).outcome, FOUND)

    def test_a_request_over_the_receive_limit(self):
        limit = self.client.call(DESCRIBE, table='hex').limits.request_bytes_max
        self.assert_fails(grpc.StatusCode.RESOURCE_EXHAUSTED, self.client, GET, table='hex', key=bytes(limit))
        self.assert_fails(grpc.StatusCode.RESOURCE_EXHAUSTED, self.client, BATCH_GET, table='hex',
                          packed_keys={'data': bytes(limit), 'width': 30_000})
        self.assertEqual(self.client.call(GET, table='hex', key=b'\0').outcome, FOUND)

    def test_unknown_tables(self):
        for name in ('nope', '', '../hex', 'x' * 1000):
            for method, fields in ((GET, {'key': b'\0'}), (BATCH_GET, {'keys': [b'\0']}), (DESCRIBE, {})):
                self.assert_fails(grpc.StatusCode.NOT_FOUND, self.client, method, f'no table .{name[:100]}',
                                  table=name, **fields)

    def test_no_key(self):
        self.assert_fails(grpc.StatusCode.INVALID_ARGUMENT, self.client, GET, 'key', table='hex')
        self.assert_fails(grpc.StatusCode.INVALID_ARGUMENT, self.client, GET, 'key', table='hex', key=b'')
        reply = self.client.call(BATCH_GET, table='hex')
        self.assertTrue(reply.complete)
        self.assertEqual((len(reply.rows), reply.generation), (0, 1))

    def test_wrong_widths_are_named(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        for table, width in (('uuid', 16), ('u64', 8)):
            words = f'expected {width} bytes, got 5'
            self.assert_fails(invalid, self.client, GET, words, table=table, key=b'12345')
            self.assert_fails(invalid, self.client, BATCH_GET, rf'keys\[1\].*{words}', table=table,
                              keys=[bytes(width), b'12345'])
            self.assert_fails(invalid, self.client, BATCH_GET, f'width.*{words}', table=table,
                              packed_keys={'data': bytes(10), 'width': 5})
            self.assert_fails(invalid, self.client, BATCH_GET, rf'lengths\[1\].*{words}', table=table,
                              packed_keys={'data': bytes(width + 5), 'lengths': [width, 5]})

    def test_keys_that_do_not_add_up(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        for words, packed in (('multiple of width 2', {'data': b'123', 'width': 2}),
                              ('3 bytes of the lengths, got 4', {'data': b'1234', 'lengths': [1, 2]}),
                              (r'lengths\[1\]', {'data': b'12', 'lengths': [1, 2]}),
                              (r'lengths\[0\]', {'data': b'12', 'lengths': [0, 2]}),
                              ('got both', {'data': b'12', 'width': 1, 'lengths': [1, 1]}),
                              ('got 2', {'data': b'12'})):
            self.assert_fails(invalid, self.client, BATCH_GET, words, table='hex', packed_keys=packed)
        self.assert_fails(invalid, self.client, BATCH_GET, 'got 2 of them', table='hex', keys=[b'\0'],
                          text_keys=['00'])

    def test_malformed_text_names_its_index(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        self.assert_fails(invalid, self.client, GET, 'text_key: not hexadecimal', table='hex', text_key='0')
        self.assert_fails(invalid, self.client, BATCH_GET, r'text_keys\[2\]: not a UUID', table='uuid',
                          text_keys=['0' * 32, 'f' * 32, 'g' * 32])
        self.assert_fails(invalid, self.client, BATCH_GET, r'text_keys\[0\]: not a u64', table='u64',
                          text_keys=['07'])

    def test_a_deadline_that_is_over(self):
        """Told by a client that doesn't watch the clock itself, so that it is the server that gives up."""
        request = self.client.message('latchkey.v1.GetRequest')(table='hex', key=b'\0').SerializeToString()
        for headers, status in (([], 0), ([('grpc-timeout', '100S')], 0), ([('grpc-timeout', '0n')], 4)):
            call = RawCall(self.server.address, GET, request, headers)
            self.assertEqual(call.finish()[1], status)
            call.close()
        self.assertEqual(self.counted(), 2)  # the last one was not looked up
        with self.assertRaises(grpc.RpcError) as caught:
            self.client.call(GET, table='hex', key=b'\0', timeout_s=-1)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_more_requests_than_the_queue_holds(self):
        client = self.connect(self.start('--threads', 1, '--queue-max', 1))
        keys = [self.random.randbytes(1) for _ in range(4096)]
        calls = [client.future(BATCH_GET, table='hex', keys=keys) for _ in range(100)]
        outcomes = [FOUND if key in (b'\0', b'\x11') else ABSENT for key in keys]
        answered = 0
        for call in calls:
            try:
                self.assertEqual([row.outcome for row in call.result().rows], outcomes)
                answered += 1
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertGreater(answered, 0)


class ValuesTest(RpcTestCase):

    def setUp(self):
        super().setUp()
        self.rows = {'text': 'välue'.encode(), 'bytes': b'\xff\x00', 'empty': b'',
                     'large': self.random.randbytes(5 << 20)}
        content = b''.join(key.encode() + b'\t' + escape_tsv(value) + b'\n'
                           for key, value in self.rows.items())
        self.build('t', content, '--format', 'tsv', '--key-kind', 'text', '--value-column', '2')
        self.client = self.connect(self.start('--reply-bytes-max', 8 << 20))

    def test_text_comes_as_text_when_it_is_wanted_and_can_be(self):
        for form, text in (({'key': b'text'}, False), ({'key': b'text', 'text_values': True}, True),
                           ({'text_key': 'text'}, True)):
            reply = self.client.call(GET, table='t', **form)
            self.assertEqual(reply.WhichOneof('value_form'), 'text_value' if text else 'value')
            self.assertEqual(reply.text_value.encode() or reply.value, self.rows['text'])
        reply = self.client.call(GET, table='t', text_key='bytes')
        self.assertEqual((reply.WhichOneof('value_form'), reply.value), ('value', b'\xff\x00'))
        reply = self.client.call(GET, table='t', text_key='empty')
        self.assertEqual((reply.WhichOneof('value_form'), reply.value_size), ('text_value', 0))
        reply = self.client.call(GET, table='t', text_key='none')
        self.assertEqual((reply.outcome, reply.WhichOneof('value_form')), (ABSENT, None))

    def test_a_part_of_a_value(self):
        value = self.rows['large']
        for offset, limit in ((0, 10), (1, 1), (len(value) - 3, 10), (len(value), 5), (len(value) + 9, 5),
                              (1 << 63, 1), (0, 8 << 20), (0, 0), (4 << 20, 0)):
            reply = self.client.call(GET, table='t', key=b'large', value_offset=offset, value_limit=limit)
            end = offset + limit if limit else offset + ((4 << 20) - (256 << 10))
            self.assertEqual(reply.value, value[offset:end], (offset, limit))
            self.assertEqual((reply.outcome, reply.value_size), (FOUND, len(value)))

    def test_the_reply_budget_leaves_out_what_does_not_fit(self):
        keys = [b'large', b'text', b'none', b'large', b'bytes']
        for answer_form in (ROWS, PACKED):
            for budget, expected in ((0, [NOT_DONE, FOUND, ABSENT, NOT_DONE, FOUND]),
                                     (6 << 20, [FOUND, FOUND, ABSENT, NOT_DONE, FOUND]),
                                     (1 << 31, [FOUND, FOUND, ABSENT, NOT_DONE, FOUND]),
                                     (1, [NOT_DONE, NOT_DONE, ABSENT, NOT_DONE, NOT_DONE])):
                reply = self.client.call(BATCH_GET, table='t', keys=keys, answer_form=answer_form,
                                         reply_bytes_max=budget)
                if answer_form == ROWS:
                    outcomes = [row.outcome for row in reply.rows]
                    reasons = [row.reason for row in reply.rows]
                else:
                    outcomes = [byte & 15 for byte in reply.packed_rows.outcomes]
                    reasons = [byte >> 4 for byte in reply.packed_rows.outcomes]
                self.assertEqual(outcomes, expected)
                self.assertEqual(reasons, [REPLY_BUDGET if outcome == NOT_DONE else 0 for outcome in expected])
                self.assertFalse(reply.complete)


class DescriptionTest(RpcTestCase):

    def test_list_and_describe(self):
        self.build('a', b'0000000000000001 12345678\n', '--key-kind', 'hex(8)', '--value-column', 'rest',
                   '--value-width', 8, '--doc-id-bits', 64)
        self.build('b', b'x\nyy\nzzz\n')
        self.build('b', b'x\n', '--append', '--filter-bits', 0)
        client = self.connect(self.start())
        tables = client.call(LIST).tables
        self.assertEqual([(table.name, table.generation, table.rows) for table in tables],
                         [('a', 1, 1), ('b', 2, 4)])
        a = client.call(DESCRIBE, table='a')
        self.assertEqual((a.table, a.generation, a.key_kind, a.key_bytes, a.doc_id_bits, a.values, a.value_width,
                          a.rows), ('a', 1, 'hex', 8, 64, 'fixed', 8, 1))
        # One segment needs no segment map; of two, each has what a map is made of.
        self.assertEqual((a.segment_map_bytes, a.segment_map_missing, a.memory_mode), (0, '', 'mmap'))
        b = client.call(DESCRIBE, table='b')
        self.assertEqual((b.key_kind, b.key_bytes, b.segment_map_missing), ('raw', 0, ''))
        self.assertGreater(b.segment_map_bytes, 0)
        self.assertEqual([(segment.file, segment.rows, segment.layout, segment.filter_bits_per_key,
                           segment.key_bytes_min, segment.key_bytes_max) for segment in b.segments],
                         [('g00000002-0.segment', 1, 'line', 0, 1, 1),
                          ('g00000001-0.segment', 3, 'pointer', 10, 1, 3)])
        for segment in [*a.segments, *b.segments]:
            folder = self.data / ('a' if segment in a.segments else 'b')
            self.assertEqual(segment.file_bytes, (folder / segment.file).stat().st_size)
            self.assertEqual(set(segment.section_bytes), {'directory', 'filter', 'pilots', 'lines', 'records',
                                                          'values', 'hashes', 'checksums'})
            self.assertLess(sum(segment.section_bytes.values()), segment.file_bytes)
            for name in ('directory', 'pilots', 'lines', 'hashes', 'checksums'):
                self.assertGreater(segment.section_bytes[name], 0, name)
            self.assertEqual(segment.section_bytes['filter'] > 0, segment.filter_bits_per_key > 0)
            self.assertEqual(segment.section_bytes['records'] > 0, segment.layout == 'pointer')
            self.assertEqual(segment.section_bytes['values'], 0)
        limits = b.limits
        self.assertEqual((limits.batch_keys_max, limits.key_bytes_max), (4096, 32_766))
        self.assertLess(limits.reply_bytes_default, 4 << 20)
        self.assertEqual(limits.reply_bytes_max, 64 << 20)

    def test_why_there_is_no_segment_map(self):
        self.build('t', b'x\n')
        self.build('t', b'y\n', '--append', '--no-hash-list')
        client = self.connect(self.start())
        t = client.call(DESCRIBE, table='t')
        self.assertEqual(t.segment_map_bytes, 0)
        self.assertRegex(t.segment_map_missing, r'/t/g00000002-0\.segment: it was built without a hash list')
        self.assertEqual([segment.section_bytes['hashes'] > 0 for segment in t.segments], [False, True])
        reply = client.call(BATCH_GET, table='t', keys=[b'x', b'y', b'z'])
        self.assertEqual([row.outcome for row in reply.rows], [FOUND, FOUND, ABSENT])

    def test_counts(self):
        self.build('t', b'a\nb\n')
        client = self.connect(self.start())
        client.call(GET, table='t', key=b'a')
        client.call(BATCH_GET, table='t', keys=[b'a', b'b', b'c', b'c'])
        counts = client.call(DESCRIBE, table='t').counts
        self.assertEqual((counts.keys, counts.found, counts.damaged), (5, 3, 0))


class FaultsTest(RpcTestCase):
    """Waits for the disk happen on the look-up threads, and only until the table is in memory."""

    def test_waits_for_the_disk(self):
        keys = [self.random.randbytes(16) for _ in range(200_000)]
        self.build('t', b''.join(key + self.random.randbytes(40) for key in keys), '--format', 'fixed',
                   '--key-width', 16, '--value-width', 40)
        segment = self.data / 't' / 'g00000001-0.segment'
        self.drop_from_memory(segment)
        server = self.start()
        client = self.connect(server)
        before = client.call(DESCRIBE, table='t')
        waits_before = self.major_faults(server)
        self.look_up_all(client, keys)
        first = client.call(DESCRIBE, table='t')
        # Each wait is counted once: on the threads that look up, or on the others.
        self.assertEqual(first.counts.major_faults - before.counts.major_faults +
                         first.rpc_thread_major_faults - before.rpc_thread_major_faults,
                         self.major_faults(server) - waits_before)
        self.look_up_all(client, keys)
        second = client.call(DESCRIBE, table='t')
        print(f'waits for the disk: {first.counts.major_faults} in look-ups, '
              f'{first.rpc_thread_major_faults} elsewhere', flush=True)
        self.assertEqual(second.counts.major_faults, first.counts.major_faults)
        self.assertEqual(second.counts.keys, 2 * len(keys))
        # The program itself may still have had to be read at the very first.
        self.assertLessEqual(second.rpc_thread_major_faults, 20)
        self.assertEqual(second.rpc_thread_major_faults, first.rpc_thread_major_faults)

    def drop_from_memory(self, path):
        with open(path, 'rb') as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def major_faults(self, server):
        """What the kernel has counted for the whole process."""
        stat = pathlib.Path(f'/proc/{server.pid}/stat').read_text()
        return int(stat.rsplit(')', 1)[1].split()[9])

    def look_up_all(self, client, keys):
        for begin in range(0, len(keys), 4096):
            part = keys[begin:begin + 4096]
            reply = client.call(BATCH_GET, table='t', packed_keys={'data': b''.join(part), 'width': 16},
                                answer_form=PACKED)
            self.assertEqual(reply.packed_rows.outcomes, bytes([FOUND]) * len(part))
            self.assertEqual(list(reply.packed_rows.doc_ids_32), list(range(begin, begin + len(part))))


class DamageTest(RpcTestCase):
    """A page of zeros, as a lost block leaves it, shows as damage and never as absence or as another row."""

    ROWS = 5000

    def damage_and_ask(self, table, keys, values, page_of):
        """Zeroes a page that holds something, and asks for every key: the outcomes."""
        segment = self.data / table / 'g00000001-0.segment'
        whole = segment.read_bytes()
        page = page_of(whole)
        with open(segment, 'r+b') as file:
            file.seek(page)
            file.write(bytes(4096))
        # What a look-up itself finds: nothing is checked beforehand, or beside it.
        client = self.connect(self.start('--verify-mib-per-s', '0', '--warm-up', 'none'))
        absent = [self.random.randbytes(len(key)) for key in keys]
        outcomes = []
        for begin in range(0, len(keys), 2048):
            asked = keys[begin:begin + 2048] + absent[begin:begin + 2048]
            reply = client.call(BATCH_GET, table=table, keys=asked)
            count = len(asked) // 2
            for i, row in enumerate(reply.rows[:count]):
                self.check_row(row, begin + i, values[begin + i])
            for row in reply.rows[count:]:
                self.assertIn((row.outcome, row.reason), ((ABSENT, 0), (NOT_DONE, DAMAGED_DATA)))
            outcomes += [row.outcome for row in reply.rows[:count]]
            self.assertEqual(reply.complete, all(row.outcome != NOT_DONE for row in reply.rows))
            packed = client.call(BATCH_GET, table=table, keys=asked, answer_form=PACKED).packed_rows.outcomes
            self.assertEqual(packed, bytes(row.outcome | row.reason << 4 for row in reply.rows))
        one = client.call(GET, table=table, key=keys[outcomes.index(NOT_DONE)])
        self.assertEqual((one.outcome, one.reason), (NOT_DONE, DAMAGED_DATA))
        self.assertGreater(client.call(DESCRIBE, table=table).counts.damaged, 0)
        return whole[page:page + 4096], outcomes

    def check_row(self, row, doc_id, value):
        if row.outcome == FOUND:
            self.assertEqual((row.doc_id, row.value), (doc_id, value))
        else:
            self.assertEqual((row.outcome, row.reason, row.value), (NOT_DONE, DAMAGED_DATA, b''))

    def check_outcomes(self, outcomes, is_lost):
        lost = [i for i, outcome in enumerate(outcomes) if is_lost(i)]
        self.assertGreater(len(lost), 5)
        self.assertEqual({outcomes[i] for i in lost}, {NOT_DONE})
        # Others may meet the hole on their way, but few do.
        self.assertGreater(outcomes.count(FOUND), self.ROWS * 0.9)
        self.assertEqual(outcomes.count(ABSENT), 0)

    def build_rows(self, table, *flags):
        """Keys, and a value for each that tells it."""
        keys = [self.random.randbytes(16) for _ in range(self.ROWS)]
        values = [struct.pack('<Q', i + 1) for i in range(self.ROWS)]
        self.build(table, b''.join(key + value for key, value in zip(keys, values)), '--format', 'fixed',
                   '--key-width', 16, '--value-width', 8, *flags)
        return keys, values

    def test_keys(self):
        for layout in ('line', 'pointer'):
            keys, values = self.build_rows(layout, '--layout', layout)
            page, outcomes = self.damage_and_ask(
                layout, keys, values, lambda whole: whole.index(keys[77]) // 4096 * 4096)
            self.check_outcomes(outcomes, lambda i: keys[i] in page)
            done = self.latchkey('batch', '--data', self.data, '--table', layout,
                                 stdin=escape_tsv(keys[77]) + b'\n', code=FAILURE)
            self.assertTrue(done.out.endswith(b'\tnot-done:damaged-data\t\t\n'), done.out)
            self.assertIn('standard input:1: not-done:damaged-data', done.err)

    def test_pointers(self):
        keys, values = self.build_rows('t', '--layout', 'pointer')
        sections = self.sections('t')
        page, outcomes = self.damage_and_ask('t', keys, values, lambda whole: sections['lines'])
        # As many rows as the page's lines point to.
        self.assertNotEqual(page, bytes(4096))
        lost = sum(page[end - 1] - 0x80 for end in range(64, 4097, 64))
        self.assertGreater(lost, 64 * 5)
        self.assertEqual(outcomes.count(NOT_DONE), lost)
        self.assertEqual(outcomes.count(FOUND), self.ROWS - lost)

    def test_pilots(self):
        for layout in ('line', 'pointer'):
            keys, values = self.build_rows(layout, '--layout', layout)
            sections = self.sections(layout)
            page, outcomes = self.damage_and_ask(layout, keys, values, lambda whole: sections['pilots'])
            self.assertNotIn(0, page[:self.ROWS * 2 // 5])
            self.assertEqual(outcomes, [NOT_DONE] * self.ROWS)  # all of them fit a page

    def sections(self, table):
        """Where the sections of its only segment begin, from the segment's header."""
        sections = support.sections_of(self.data / table / 'g00000001-0.segment')
        return {name: offset for name, (offset, _) in sections.items()}

    def test_a_hash_list(self):
        """It is not needed to answer: only the segment map is not made, and the table's description says why."""
        rows = {}
        for i in range(2):
            keys, values = self.build_rows('t', *(['--append'] if i else []))
            rows.update(zip(keys, values))
        at = self.sections('t')['hashes']
        with open(self.data / 't' / 'g00000001-0.segment', 'r+b') as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
        client = self.connect(self.start())
        described = client.call(DESCRIBE, table='t')
        self.assertEqual(described.segment_map_bytes, 0)
        self.assertRegex(described.segment_map_missing, "g00000001-0.segment: section 'hashes' is damaged")
        keys = list(rows)
        absent = [self.random.randbytes(16) for _ in range(2000)]
        for begin in range(0, len(keys), 2000):
            asked = keys[begin:begin + 2000] + absent
            reply = client.call(BATCH_GET, table='t', keys=asked)
            self.assertTrue(reply.complete)
            self.assertEqual([row.value for row in reply.rows], [rows.get(key, b'') for key in asked])
        done = self.latchkey('verify', '--data', self.data, '--table', 't', code=FAILURE)
        self.assertIn("g00000001-0.segment: section 'hashes'", done.err)

    def test_values(self):
        keys = [self.random.randbytes(16) for _ in range(self.ROWS)]
        values = [self.random.randbytes(200) for _ in range(self.ROWS)]
        self.build('t', b''.join(key + value for key, value in zip(keys, values)), '--format', 'fixed',
                   '--key-width', 16, '--value-width', 200)
        page, outcomes = self.damage_and_ask(
            't', keys, values, lambda whole: whole.index(values[77]) // 4096 * 4096)
        self.check_outcomes(outcomes, lambda i: values[i][:100] in page or values[i][100:] in page)


class ManyClientsTest(RpcTestCase):

    def test_threads_that_ask_at_once(self):
        rows = {self.random.randbytes(16): self.random.randbytes(20) for _ in range(4000)}
        content = b''.join(key.hex().encode() + b'\t' + escape_tsv(value) + b'\n' for key, value in rows.items())
        self.build('t', content, '--format', 'tsv', '--key-kind', 'hex', '--value-column', '2')
        server = self.start()

        def ask(number):
            rng = random.Random(f'{support.SEED} {number}')
            with ReflectedClient(server.address) as client:
                for _ in range(40):
                    asked = rng.sample(list(rows), 200) + [rng.randbytes(16) for _ in range(200)]
                    reply = client.call(BATCH_GET, table='t', keys=asked)
                    if [row.value for row in reply.rows] != [rows.get(key, b'') for key in asked]:
                        return 'wrong rows'
            return 'right'

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(set(pool.map(ask, range(8))), {'right'})


if __name__ == '__main__':
    unittest.main()
