"""Clients that were not written here ask, and get what a plain dict says.

Python's grpcio knows the server through reflection alone; grpcurl is a program of its own. grpcurl is taken from the
PATH, else built by the Go toolchain into a cache outside of this tree. Only where there is no Go at all are its tests
left out, and they say so; where Go is there and can't build it, they fail.
"""

import itertools
import json
import os
import pathlib
import shutil
import unittest

import support
from grpc_reflection import HEALTH_SERVING, ReflectedClient
from rpc_test_case import ABSENT, BATCH_GET, DESCRIBE, FOUND, GET, LIST, PACKED, ROWS
from support import CACHE_DIR, escape_tsv, text_of_key

ROWS_PER_TABLE = 80
GRPCURL = 'github.com/fullstorydev/grpcurl/cmd/grpcurl'
GRPCURL_VERSION = 'v1.9.1'


class Table:
    """A table of one kind: its rows, and as many keys that are not in it. What is in an older segment may be stale."""

    def __init__(self, rng, kind, layout, bits, values, segments):
        self.name = f'{kind}.{layout}.{bits}.{values}'
        self.kind, self.layout, self.bits, self.values = kind, layout, bits, values
        keys = support.random_keys(rng, 2 * ROWS_PER_TABLE, kind, layout == 'line')
        self.absent = keys[ROWS_PER_TABLE:]
        doc_ids = support.distinct_numbers(rng, ROWS_PER_TABLE, bits)
        self.rows = {key: (doc_id, support.random_value(rng, values))
                     for key, doc_id in zip(keys, doc_ids)}
        self.segments = [{} for _ in range(segments)]  # oldest first
        for key, row in self.rows.items():
            newest = rng.randrange(segments)
            self.segments[newest][key] = row
            for segment in self.segments[:newest]:
                if rng.random() < 0.5:
                    segment[key] = (rng.randrange(1000), support.random_value(rng, values))
        self.asked = keys + rng.choices(keys, k=30)  # some twice
        rng.shuffle(self.asked)

    def build(self, case):
        for i, segment in enumerate(self.segments):
            case.build(self.name, self.content(segment), *self.flags(), *(['--append'] if i else []))

    def content(self, rows):
        field = (lambda key: key) if self.kind == 'raw' else lambda key: text_of_key(self.kind, key)
        return b''.join(escape_tsv(field(key)) + b'\t%d\t' % doc_id + escape_tsv(value) + b'\n'
                        for key, (doc_id, value) in rows.items())

    def flags(self):
        flags = ['--format', 'tsv', '--key-kind', self.kind, '--layout', self.layout, '--doc-id-bits',
                 self.bits, '--id-column', '2']
        if self.values != 'none':
            flags += ['--value-column', '3']
        return flags + (['--value-width', 8] if self.values == 'fixed' else [])

    def expected(self):
        """(outcome, doc id, value) of each key that is asked for, by the dict."""
        return [(FOUND, *self.rows[key]) if key in self.rows else (ABSENT, 0, b'') for key in self.asked]

    def expected_form(self, outcome, value, as_text):
        """Which field of a row or reply holds the value."""
        if outcome != FOUND or self.values == 'none':
            return None
        if not as_text:
            return 'value'
        try:
            value.decode()
            return 'text_value'
        except UnicodeDecodeError:
            return 'value'


def encodings(table):
    """Every form in which a batch's keys can come."""
    keys = table.asked
    yield {'keys': keys}
    if is_text(table):
        yield {'text_keys': [text_of_key(table.kind, key).decode() for key in keys]}
    packed = {'data': b''.join(keys)}
    yield {'packed_keys': {**packed, 'lengths': [len(key) for key in keys]}}
    if len({len(key) for key in keys}) == 1:
        yield {'packed_keys': {**packed, 'width': len(keys[0])}}


def is_text(table):
    """Whether all of the keys that are asked for have a text. Escaped raw keys do."""
    return all(is_utf8(text_of_key(table.kind, key)) for key in table.asked)


def is_utf8(data):
    try:
        data.decode()
        return True
    except UnicodeDecodeError:
        return False


def value_of(message):
    form = message.WhichOneof('value_form')
    value = getattr(message, form) if form else b''
    return form, value.encode() if isinstance(value, str) else value


class PythonTest(support.TestCase):
    """Every key that was built and as many absent ones, by each encoding, layout, doc id width, and kind."""

    @classmethod
    def setUpClass(cls):
        shared = cls.for_class()
        axes = itertools.product(support.KEY_KINDS, ('line', 'pointer'), (32, 64), ('none', 'fixed', 'bytes'))
        # One segment, or several, for which the server makes a segment map.
        cls.tables = [Table(shared.random, *choice, segments=1 + i % 4) for i, choice in enumerate(axes)]
        for table in cls.tables:
            table.build(shared)
        cls.client = ReflectedClient(shared.start().address)
        cls.addClassCleanup(cls.client.close)

    def check_get(self, table):
        for key, (outcome, doc_id, value) in zip(table.asked, table.expected()):
            for form in ({'key': key}, {'text_key': text_of_key(table.kind, key).decode()},
                         {'key': key, 'text_values': True}):
                reply = self.client.call(GET, table=table.name, **form)
                as_text = len(form) == 2 or 'text_key' in form
                self.assertEqual(
                    (reply.outcome, reply.doc_id, *value_of(reply), reply.value_size, reply.reason,
                     reply.generation),
                    (outcome, doc_id, table.expected_form(outcome, value, as_text), value, len(value), 0,
                     len(table.segments)),
                    (table.name, key))

    def check_rows(self, table, fields, text_values):
        reply = self.client.call(BATCH_GET, table=table.name, answer_form=ROWS, text_values=text_values,
                                 **fields)
        self.assertEqual((reply.generation, reply.complete, reply.HasField('packed_rows')),
                         (len(table.segments), True, False))
        got = [(row.outcome, row.doc_id, *value_of(row), row.reason) for row in reply.rows]
        as_text = text_values or 'text_keys' in fields
        want = [(outcome, doc_id, table.expected_form(outcome, value, as_text), value, 0)
                for outcome, doc_id, value in table.expected()]
        self.assert_rows(got, want, f'rows of {table.name}, {list(fields)}')

    def check_packed(self, table, fields):
        reply = self.client.call(BATCH_GET, table=table.name, answer_form=PACKED, **fields)
        self.assertEqual((reply.generation, reply.complete, len(reply.rows)), (len(table.segments), True, 0))
        columns = reply.packed_rows
        other, doc_ids = columns.doc_ids_64, columns.doc_ids_32
        if table.bits == 64:
            other, doc_ids = doc_ids, other
        self.assertEqual(len(other), 0)
        lengths = columns.value_lengths
        self.assertEqual(len(lengths), 0 if table.values == 'none' else len(table.asked))
        ends = list(itertools.accumulate(lengths)) or [0] * len(table.asked)
        begins = [0, *ends[:-1]]
        self.assertEqual(len(columns.values), ends[-1])
        got = [(outcome, doc_id, columns.values[begin:end]) for outcome, doc_id, begin, end in
               zip(columns.outcomes, doc_ids, begins, ends, strict=True)]
        self.assert_rows(got, table.expected(), f'columns of {table.name}, {list(fields)}')

    def test_get(self):
        for table in self.tables:
            self.check_get(table)

    def test_batch_get(self):
        forms = 0
        for table in self.tables:
            for fields in encodings(table):
                forms += 1
                self.check_rows(table, fields, text_values=False)
                self.check_rows(table, fields, text_values=True)
                self.check_packed(table, fields)
        # Keys and lengths always, text always, a width for the line half and what is of one width by kind.
        self.assertEqual(forms, 60 * 3 + 30 + 12)

    def test_list_and_describe(self):
        listed = {table.name: (table.generation, table.rows) for table in self.client.call(LIST).tables}
        stored = {table.name: sum(map(len, table.segments)) for table in self.tables}
        self.assertEqual(listed, {table.name: (len(table.segments), stored[table.name]) for table in self.tables})
        for table in self.tables:
            reply = self.client.call(DESCRIBE, table=table.name)
            self.assertEqual((reply.key_kind, reply.doc_id_bits, reply.values, reply.rows, reply.key_bytes),
                             (table.kind, table.bits, table.values, stored[table.name], 0))
            self.assertEqual([(segment.layout, segment.rows) for segment in reply.segments],
                             [(table.layout, len(segment)) for segment in reversed(table.segments)])
            self.assertEqual((reply.segment_map_bytes > 0, reply.segment_map_missing),
                             (len(table.segments) > 1, ''))

    def test_services(self):
        self.assertLessEqual({'latchkey.v1.Lookup', 'grpc.health.v1.Health'}, set(self.client.services()))
        self.assertEqual(self.client.health(), HEALTH_SERVING)
        with self.assertRaises(LookupError):
            self.client.message('latchkey.v1.NoSuchMessage')


def find_go():
    """The Go toolchain: on the PATH, or where its own installer puts it."""
    usual = pathlib.Path('/usr/local/go/bin/go')
    return shutil.which('go') or (str(usual) if usual.exists() else None)


def find_grpcurl():
    """grpcurl's path; None where there is neither it nor Go. AssertionError if Go can't build it."""
    found = shutil.which('grpcurl')
    if found:
        return found
    built = CACHE_DIR / f'grpcurl-{GRPCURL_VERSION}' / 'grpcurl'
    with support.cache_lock('grpcurl'):
        if built.exists():
            return str(built)
        go = find_go()
        if go is None:
            return None
        done = support.run([go, 'install', f'{GRPCURL}@{GRPCURL_VERSION}'], timeout_s=540,
                           env=dict(os.environ, GOBIN=str(built.parent)), cwd=CACHE_DIR)
        if done.code != 0 or not built.exists():
            raise AssertionError(f'go could not build grpcurl {GRPCURL_VERSION}:\n{done.err}')
        return str(built)


class GrpcurlTest(support.TestCase):

    def setUp(self):
        super().setUp()
        self.grpcurl = find_grpcurl()
        if self.grpcurl is None:
            message = 'left out: there is no grpcurl, and no Go to build it with'
            print(message, flush=True)
            self.skipTest(message)
        self.rows = {self.random.randbytes(16): (i, f'usr/share/däta {i}') for i in range(1000)}
        self.absent = [self.random.randbytes(16) for _ in range(1000)]
        content = b''.join(b'%s  %s\n' % (key.hex().encode(), path.encode())
                           for key, (_, path) in self.rows.items())
        self.build('files', content, '--key-kind', 'hex', '--value-column', 'rest')
        self.address = self.start().address

    def call(self, *arguments, stdin=b'', code=0):
        environment = dict(os.environ, no_proxy='*', NO_PROXY='*')
        done = support.run([self.grpcurl, '-plaintext', *arguments], stdin=stdin, env=environment)
        self.assertEqual(done.code, code, done.err)
        return done

    def ask(self, method, request):
        """Calls a method with a JSON object: the reply's."""
        done = self.call('-emit-defaults', '-max-msg-sz', 64 << 20, '-d', '@', self.address,
                         f'latchkey.v1.Lookup/{method}', stdin=json.dumps(request).encode())
        return json.loads(done.out)

    def test_the_line_of_the_readme(self):
        for key, (doc_id, path) in itertools.islice(self.rows.items(), 5):
            request = '{"table":"files","text_key":"%s"}' % key.hex()
            done = self.call('-d', request, self.address, 'latchkey.v1.Lookup/Get')
            # What has its default is left out, as grpcurl does unless it is told otherwise.
            expected = {'generation': '1', 'outcome': 'FOUND', 'text_value': path,
                        'value_size': str(len(path.encode()))}
            if doc_id:
                expected['doc_id'] = str(doc_id)
            self.assertEqual(json.loads(done.out), expected)
        done = self.call('-d', '{"table":"files","text_key":"%s"}' % self.absent[0].hex(), self.address,
                         'latchkey.v1.Lookup/Get')
        self.assertEqual(json.loads(done.out), {'generation': '1', 'outcome': 'ABSENT'})

    def test_every_key_as_a_batch(self):
        asked = list(self.rows) + self.absent
        self.random.shuffle(asked)
        reply = self.ask('BatchGet', {'table': 'files', 'text_keys': [key.hex() for key in asked]})
        self.assertEqual((reply['generation'], reply['complete']), ('1', True))
        got = [(row['outcome'], int(row['doc_id']), row.get('text_value')) for row in reply['rows']]
        want = [('FOUND', *self.rows[key]) if key in self.rows else ('ABSENT', 0, None) for key in asked]
        self.assert_rows(got, want, 'rows')

    def test_list_and_describe(self):
        services = self.call(self.address, 'list').out.decode().split()
        self.assertLessEqual({'latchkey.v1.Lookup', 'grpc.health.v1.Health'}, set(services))
        methods = self.call(self.address, 'list', 'latchkey.v1.Lookup').out.decode().split()
        self.assertLessEqual({f'latchkey.v1.Lookup.{name}' for name in
                              ('Get', 'BatchGet', 'ListTables', 'DescribeTable')}, set(methods))
        described = self.call(self.address, 'describe', 'latchkey.v1.Lookup').out.decode()
        self.assertIn('rpc BatchGet ( .latchkey.v1.BatchGetRequest ) returns ( .latchkey.v1.BatchGetResponse );',
                      described)
        described = self.call(self.address, 'describe', 'latchkey.v1.GetRequest').out.decode()
        self.assertIn('string text_key = 3;', described)

    def test_tables(self):
        self.assertEqual(self.ask('ListTables', {}),
                         {'tables': [{'name': 'files', 'generation': '1', 'rows': '1000'}]})
        reply = self.ask('DescribeTable', {'table': 'files'})
        self.assertEqual((reply['key_kind'], reply['rows'], reply['segments'][0]['layout']),
                         ('hex', '1000', 'line'))

    def test_errors(self):
        for request, code, words in (({'table': 'none', 'text_key': '00'}, 'NotFound', "no table 'none'"),
                                     ({'table': 'files', 'text_key': 'xyz'}, 'InvalidArgument', 'not hexadecimal'),
                                     ({'table': 'files'}, 'InvalidArgument', 'text_key')):
            done = support.run([self.grpcurl, '-plaintext', '-d', json.dumps(request), self.address,
                                'latchkey.v1.Lookup/Get'])
            self.assertNotEqual(done.code, 0)
            self.assertIn(f'Code: {code}', done.err)
            self.assertIn(words, done.err)


if __name__ == '__main__':
    unittest.main()
