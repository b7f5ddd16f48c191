"""`latchkey build`: every input format, key kind, value kind, doc id width and layout, and what it refuses.

Each table that is built is read back whole, by dump, and key by key, by batch, straight and through a server.
"""

import csv
import io
import itertools
import json
import os
import unittest

import support
from support import FAILURE, LATCHKEY, NOT_FOUND, USAGE, escape_csv, escape_tsv, parse_batch, text_of_key

ROWS = 80


class Table:
    """A table to build: its rows, and the input that holds them."""

    def __init__(self, rng, file_format, kind, values, bits, layout):
        self.name = f'{file_format}-{kind}-{values}-{bits}-{layout}'
        self.kind, self.values = kind, values
        ids = file_format in ('csv', 'tsv')  # the others have no place for them
        one_length = layout == 'line' or file_format == 'fixed'
        # What a line can't hold must not be in it.
        plain = file_format == 'lines'
        keys = support.random_keys(rng, 2 * ROWS, kind, one_length, plain)
        self.keys, self.absent = keys[:ROWS], keys[ROWS:]
        width = values if file_format != 'fixed' or values != 'bytes' else 'wide'
        self.value_of = {key: rng.randbytes(100) if width == 'wide' else
                         support.random_value(rng, values, plain) for key in self.keys}
        doc_ids = support.distinct_numbers(rng, ROWS, bits) if ids else range(ROWS)
        self.doc_id_of = dict(zip(self.keys, doc_ids))
        self.content = getattr(self, file_format)()
        self.flags = ['--format', file_format, '--key-kind', kind, '--doc-id-bits', bits,
                      *self.columns(file_format, ids)]
        if bits == 32:  # else it follows from the keys
            self.flags += ['--layout', layout]

    def rows(self):
        return {key: (self.doc_id_of[key], self.value_of[key]) for key in self.keys}

    def columns(self, file_format, ids):
        flags = []
        if file_format == 'fixed':
            flags = ['--key-width', len(self.keys[0])]
            if self.values != 'none':
                flags += ['--value-width', len(self.value_of[self.keys[0]])]
            return flags
        if self.values == 'fixed':
            flags += ['--value-width', 8]
        if file_format == 'lines':
            return flags + (['--value-column', 'rest'] if self.values != 'none' else [])
        flags += ['--key-column', 'the key']  # a name, so there is a header
        if self.values != 'none':
            flags += ['--value-column', '3']
        return flags + (['--id-column', 'id'] if ids else [])

    def key_field(self, key):
        """The key in an input: raw and text keys are the bytes, other kinds as they are written."""
        return key if self.kind in ('raw', 'text') else text_of_key(self.kind, key)

    def lines(self):
        gap = b'  ' if self.values != 'none' else b''
        return b''.join(self.key_field(key) + gap + self.value_of[key] + b'\n' for key in self.keys)

    def csv(self):
        rows = [b'id,"the key",value']
        for key in self.keys:
            fields = [b'%d' % self.doc_id_of[key], self.key_field(key), self.value_of[key]]
            rows.append(b','.join(escape_csv(field) for field in fields))
        return b'\r\n'.join(rows) + b'\r\n'

    def tsv(self):
        rows = [b'id\tthe key\tvalue']
        for key in self.keys:
            fields = [b'%d' % self.doc_id_of[key], escape_tsv(self.key_field(key)),
                      escape_tsv(self.value_of[key])]
            rows.append(b'\t'.join(fields))
        return b'\n'.join(rows)  # the last line end may be missing

    def fixed(self):
        return b''.join(key + self.value_of[key] for key in self.keys)


class FormatsTest(support.TestCase):

    def check_format(self, file_format):
        tables = [Table(self.random, file_format, *axes) for axes in itertools.product(
            support.KEY_KINDS, ('none', 'fixed', 'bytes'), (32, 64), ('line', 'pointer'))]
        for table in tables:
            self.build(table.name, table.content, *table.flags)
        server = self.start()
        for table in tables:
            with self.subTest(table.name):
                self.check_dump(table)
                self.check_batch(table, server)

    def check_dump(self, table):
        out = self.latchkey('dump', '--data', self.data, '--table', table.name).out
        dumped = {}
        for line in out.split(b'\n')[:-1]:
            text, doc_id, value = line.split(b'\t')
            if table.kind in ('raw', 'text'):
                text = support.unescape_tsv(text)
            dumped[text] = int(doc_id), support.unescape_tsv(value)
        expected = {table.key_field(key): row for key, row in table.rows().items()}
        self.assert_rows(dumped, expected, f'dump of {table.name}')

    def check_batch(self, table, server):
        asked = table.keys + table.absent
        self.random.shuffle(asked)
        # A text key that holds a line end can't be asked for on a line.
        asked = [key for key in asked if table.kind != 'text' or b'\n' not in key]
        rows = table.rows()
        expected = []
        for key in asked:
            text = text_of_key(table.kind, key)
            expected.append((text, 'found', *rows[key]) if key in rows else (text, 'absent', None, b''))
        stdin = b''.join(text_of_key(table.kind, key) + b'\n' for key in asked)
        where = ['--table', table.name]
        local = self.latchkey('batch', '--data', self.data, *where, stdin=stdin, code=NOT_FOUND)
        self.assert_rows(parse_batch(local.out), expected, f'batch of {table.name}')
        remote = self.latchkey('batch', '--server', server.address, *where, stdin=stdin, code=NOT_FOUND)
        self.assert_rows(parse_batch(remote.out), expected, f'batch of {table.name} from the server')

    def test_lines(self):
        self.check_format('lines')

    def test_csv(self):
        self.check_format('csv')

    def test_tsv(self):
        self.check_format('tsv')

    def test_fixed(self):
        self.check_format('fixed')


class ColumnsTest(support.TestCase):

    def rows_of(self, table):
        out = self.latchkey('dump', '--data', self.data, '--table', table, '--json').out
        return {row['key']: (row['doc_id'], row['value']) for row in support.parse_json_lines(out)}

    def test_several_value_columns_are_joined_by_tabs_and_escaped(self):
        fields = [['one', 'a\tb', 'x\\y'], ['two', '', 'line\nend'], ['three', 'q"uote', 'é, ü']]
        text = io.StringIO()
        csv.writer(text).writerows([['key', 'left', 'right'], *fields])
        self.build('csv', text.getvalue().encode(), '--format', 'csv', '--key-kind', 'text',
                   '--key-column', 'key', '--value-column', 'right', '--value-column', 'left')
        expected = {key: (i, escape_tsv(right.encode()).decode() + '\t' +
                          escape_tsv(left.encode()).decode())
                    for i, (key, left, right) in enumerate(fields)}
        self.assertEqual(self.rows_of('csv'), expected)
        lines = ['\t'.join(escape_tsv(field.encode()).decode() for field in row) for row in fields]
        self.build('tsv', '\n'.join(lines).encode(), '--format', 'tsv', '--key-kind', 'text',
                   '--value-column', '3', '--value-column', '2')
        self.assertEqual(self.rows_of('tsv'), expected)

    def test_columns_by_number_without_a_header(self):
        self.build('t', b'10,a,1\n20,b,2\n', '--format', 'csv', '--key-column', '2',
                   '--id-column', '1', '--value-column', '3')
        self.assertEqual(self.rows_of('t'), {'a': (10, '1'), 'b': (20, '2')})

    def test_a_header_in_each_file_may_order_the_columns_differently(self):
        first = self.file('1.csv', b'\xef\xbb\xbfkey,value\na,1\n')
        second = self.file('2.csv', b'value,other,key\n2,x,b\n')
        self.latchkey('build', '--data', self.data, '--table', 't', '--format', 'csv', '--key-column',
                      'key', '--value-column', 'value', first, second)
        self.assertEqual(self.rows_of('t'), {'a': (0, '1'), 'b': (1, '2')})

    def test_header_flag_skips_the_first_row(self):
        self.build('t', b'key\tvalue\na\t1\n', '--format', 'tsv', '--header', '--value-column', '2')
        self.assertEqual(self.rows_of('t'), {'a': (0, '1')})

    def test_standard_input_after_a_file(self):
        first = self.file('first', b'a\nb\n')
        done = self.latchkey('build', '--data', self.data, '--table', 't', '--json', first, '-',
                             stdin=b'c\nd')
        report = support.parse_json_lines(done.out)[0]
        self.assertEqual((report['rows_read'], report['rows_stored'], report['generation']), (4, 4, 1))
        self.assertEqual(self.rows_of('t'), {'a': (0, ''), 'b': (1, ''), 'c': (2, ''), 'd': (3, '')})

    def test_no_rows(self):
        self.build('t', b'')
        self.assertEqual(self.rows_of('t'), {})
        self.latchkey('get', '--data', self.data, '--table', 't', 'x', code=NOT_FOUND)
        self.latchkey('verify', '--data', self.data, '--table', 't')


class GenerationsTest(support.TestCase):

    def get(self, *keys, code=0):
        done = self.latchkey('get', '--data', self.data, '--table', 't', *keys, code=code)
        return [row[1:] for row in parse_batch(done.out)]

    def test_append_wins_over_what_is_there(self):
        self.build('t', b'a 1\nb 2\nc 3\n', '--value-column', 'rest')
        self.build('t', b'b two\nd four\n', '--value-column', 'rest', '--append')
        self.build('t', b'c three\n', '--value-column', 'rest', '--append')
        expected = [('found', 0, b'1'), ('found', 0, b'two'), ('found', 0, b'three'), ('found', 1, b'four')]
        self.assertEqual(self.get('a', 'b', 'c', 'd'), expected)
        out = self.latchkey('dump', '--data', self.data, '--table', 't').out
        self.assertEqual(sorted(out.splitlines()),
                         [b'a\t0\t1', b'b\t0\ttwo', b'c\t0\tthree', b'd\t1\tfour'])
        report = self.latchkey('verify', '--data', self.data, '--table', 't', '--json').out
        self.assertEqual(support.parse_json_lines(report),
                         [{'table': 't', 'generation': 3, 'segments': 3, 'rows': 6, 'keys': 4}])

    def test_appended_segments_may_have_other_layouts_and_filters(self):
        keys = {}
        for i, flags in enumerate([('--layout', 'line'), ('--layout', 'pointer', '--append'),
                                   ('--filter-bits', 0, '--append'), ('--filter-bits', 32, '--append'),
                                   ('--no-hash-list', '--append')]):
            rows = {self.random.randbytes(16): self.random.randbytes(20) for _ in range(3000)}
            content = b''.join(key.hex().encode() + b'\t' + escape_tsv(value) + b'\n'
                               for key, value in rows.items())
            self.build('t', content, '--format', 'tsv', '--key-kind', 'hex', '--value-column', '2', *flags)
            keys.update({key: (i, value) for key, value in rows.items()})
            stdin = b''.join(key.hex().encode() + b'\n' for key in keys)
            rows = parse_batch(self.latchkey('batch', '--data', self.data, '--table', 't', stdin=stdin).out)
            self.assert_rows([row[3] for row in rows], [value for _, value in keys.values()], 'values')
            # With several segments that all have hash lists there is a segment map.
            table = self.inspect()
            self.assertEqual(table['segment_map_bytes'] > 0, 1 <= i <= 3, i)
            missing = 'g00000005-0.segment: it was built without a hash list' if i == 4 else ''
            self.assertIn(missing, table['segment_map_missing'])
            self.assertEqual(bool(table['segment_map_missing']), bool(missing))
        self.assertEqual([(segment['layout'], segment['filter_bits_per_key'], segment['hash_bits'] > 0,
                           segment['section_bytes']['hashes'] > 0) for segment in table['segments']],
                         [('line', 10, False, False), ('line', 32, True, True), ('line', 0, True, True),
                          ('pointer', 10, True, True), ('line', 10, True, True)])

    def inspect(self):
        out = self.latchkey('inspect', '--data', self.data, '--table', 't', '--json').out
        return json.loads(out)

    def test_a_length_for_all_keys(self):
        self.build('t', b'a0' * 20 + b'\n', '--key-kind', 'hex(20)')
        table = self.inspect()
        self.assertEqual((table['key_kind'], table['key_bytes']), ('hex', 20))
        shown = self.latchkey('inspect', '--data', self.data, '--table', 't').out.decode()
        self.assertIn('key kind hex(20), ', shown)
        self.build('t', b'b0' * 20 + b'\n', '--key-kind', 'hex(20)', '--append')
        for kind in ('hex', 'hex(21)', 'raw(20)'):
            done = self.build('t', b'', '--key-kind', kind, '--append', code=FAILURE)
            self.assertIn('cannot append: the table has key kind hex(20), ', done.err)
            self.assertIn(f'the rows have key kind {kind}, ', done.err)
        self.latchkey('get', '--data', self.data, '--table', 't', 'a0' * 20, 'b0' * 20)
        # A key of another length can be asked for; it is absent.
        self.latchkey('get', '--data', self.data, '--table', 't', 'a0' * 19, code=NOT_FOUND)

    def test_lengths_that_key_kinds_cannot_have(self):
        for kind in ('hex(0)', 'hex(020)', 'hex(20', 'hex(20) ', 'hex()', 'hex(-1)', 'raw(32767)', 'raw(65556)',
                     'uuid(16)', 'u64(8)', '(20)', 'HEX(20)', ''):
            with self.subTest(kind):
                done = support.run([LATCHKEY, 'build', '--data', self.data, '--table', 't', '--key-kind', kind, '-'])
                self.assertEqual((done.code, done.out), (USAGE, b''))
                self.assertIn('--key-kind', done.err)
        self.assertFalse(self.data.exists())
        self.build('t', b'k' * 32_766 + b'\n', '--key-kind', 'raw(32766)')

    def test_build_replaces(self):
        self.build('t', b'a\n')
        self.build('t', b'1\n', '--key-kind', 'u64')  # another schema too
        self.assertEqual(self.get('1'), [('found', 0, b'')])
        inspected = self.latchkey('inspect', '--data', self.data, '--table', 't', '--json').out
        self.assertIn(b'"key_kind": "u64"', inspected)

    def test_append_needs_a_table_of_the_same_schema(self):
        done = self.build('t', b'a\n', '--append', code=FAILURE)
        self.assertIn('no table to append to', done.err)
        self.build('t', b'a\n')
        done = self.build('t', b'1\n', '--append', '--key-kind', 'u64', code=FAILURE)
        self.assertIn('cannot append', done.err)
        self.assertEqual(self.get('a'), [('found', 0, b'')])


class DuplicatesTest(support.TestCase):
    CONTENT = b'a 1\nb 2\na 3\nc 4\nb 5\na 6\n'

    def build_with(self, rule):
        done = self.build('t', self.CONTENT, '--value-column', 'rest', '--duplicates', rule, '--json')
        report = support.parse_json_lines(done.out)[0]
        self.assertEqual((report['rows_read'], report['rows_stored'], report['duplicates_dropped']),
                         (6, 3, 3))
        out = self.latchkey('get', '--data', self.data, '--table', 't', 'a', 'b', 'c').out
        return [row[2:] for row in parse_batch(out)]

    def test_first(self):
        self.assertEqual(self.build_with('first'), [(0, b'1'), (1, b'2'), (3, b'4')])

    def test_last(self):
        self.assertEqual(self.build_with('last'), [(5, b'6'), (4, b'5'), (3, b'4')])

    def test_reject_is_the_rule_and_tells_the_rows(self):
        self.build('t', b'old\n')
        done = self.build('t', self.CONTENT, '--value-column', 'rest', code=FAILURE)
        self.assertRegex(done.err, r"3 rows repeat a key; the first is row 3 .* key 'a' of row 1")
        self.latchkey('get', '--data', self.data, '--table', 't', 'old')
        self.assertEqual(sorted(path.name for path in (self.data / 't').iterdir()),
                         ['g00000001-0.segment', 'g00000001.manifest', 'lock'])

    def test_one_key_in_two_spellings_is_one_key(self):
        content = b'0AFF 1\n0aff 2\n'
        self.build('t', content, '--key-kind', 'hex', '--value-column', 'rest', code=FAILURE)
        self.build('t', content, '--key-kind', 'hex', '--value-column', 'rest', '--duplicates', 'last')


class BadInputTest(support.TestCase):
    """Each is refused with a message that names file and line, and changes nothing."""

    def refuse(self, content, where, why, *flags):
        with self.subTest(where=where, why=why):
            self.build('good', b'x\n')
            before = sorted(path.name for path in (self.data / 'good').iterdir())
            done = self.build('good', content, *flags, code=FAILURE)
            self.assertIn(f'{self.folder}/good.input{where}: ', done.err)
            self.assertRegex(done.err, why)
            self.assertEqual(sorted(path.name for path in (self.data / 'good').iterdir()), before)
            self.latchkey('get', '--data', self.data, '--table', 'good', 'x')

    def test_lines(self):
        self.refuse(b'a\n\nb\n', ':2', 'empty key')
        self.refuse(b'a\n' + b'k' * 32_767 + b'\n', ':2', 'at most 32766 bytes, got 32767')
        self.refuse(b'00\n0g\n', ':2', 'not hexadecimal', '--key-kind', 'hex')
        self.refuse(b'00\n000\n', ':2', 'not hexadecimal', '--key-kind', 'hex')
        self.refuse(b'1\n18446744073709551616\n', ':2', 'not a u64', '--key-kind', 'u64')
        self.refuse(b'1\n-1\n', ':2', 'not a u64', '--key-kind', 'u64')
        self.refuse(b'00000000-0000-0000-0000-00000000000\n', ':1', 'not a UUID', '--key-kind', 'uuid')
        self.refuse(b'ok\n\xff\n', ':2', 'not text', '--key-kind', 'text')
        self.refuse(b'0011\n2233\n44\n5566\n', ':3', 'expected 2 bytes, got 1', '--key-kind', 'hex(2)')
        self.refuse(b'abc\nabcd\n', ':2', 'expected 3 bytes, got 4', '--key-kind', 'raw(3)')
        self.refuse('äb\nü\n'.encode(), ':2', 'expected 3 bytes, got 2', '--key-kind', 'text(3)')
        self.refuse(b'a 12345678\nb 1234567\n', ':2', 'expected 8 bytes, got 7', '--value-column', 'rest',
                    '--value-width', 8)
        self.refuse(b'a 1\nb ' + b'v' * ((16 << 20) + 1) + b'\n', ':2', 'too long', '--value-column', 'rest')

    def test_csv(self):
        csv_flags = ('--format', 'csv')
        self.refuse(b'a,1\nb\n', ':2', 'too few fields', *csv_flags, '--value-column', '2')
        self.refuse(b'a,"b\nc"\n"",1\n', ':3', 'empty key', *csv_flags)
        self.refuse(b'a,1\nb,"open\n', ':2', 'quote', *csv_flags)
        self.refuse(b'a,1\nb,x\n', ':2', 'not a doc id', *csv_flags, '--id-column', '2')
        for number in (4_294_967_294, 4_294_967_295, 4_294_967_296):
            self.refuse(b'a,%d\n' % number, ':1', 'doc id', *csv_flags, '--id-column', '2')
        for number in (18_446_744_073_709_551_614, 18_446_744_073_709_551_615, 18_446_744_073_709_551_616):
            self.refuse(b'a,%d\n' % number, ':1', 'doc id', *csv_flags, '--id-column', '2', '--doc-id-bits', 64)
        self.refuse(b'k,v\nab,"1\n2"\nabc,3\n', ':4', 'expected 2 bytes, got 3', *csv_flags, '--key-column', 'k',
                    '--key-kind', 'text(2)')
        self.refuse(b'k,v\na,1\n', ':1', 'header', *csv_flags, '--key-column', 'id')
        self.refuse(b'k,k\na,1\n', ':1', 'once in the header', *csv_flags, '--key-column', 'k')

    def test_tsv(self):
        tsv_flags = ('--format', 'tsv')
        self.refuse(b'a\t1\n\nb\t2\n', ':2', 'empty line', *tsv_flags)
        self.refuse(b'a\t1\nb\n', ':2', 'too few fields', *tsv_flags, '--value-column', '2')
        self.refuse(b'a\t1\nb\t\\q\n', ':2', r'\\', *tsv_flags, '--value-column', '2')
        self.refuse(b'a\n\\x0\n', ':2', r'\\', *tsv_flags)
        self.refuse(b'ab\n\\x00\n', ':2', 'expected 2 bytes, got 1', *tsv_flags, '--key-kind', 'raw(2)')

    def test_fixed(self):
        fixed_flags = ('--format', 'fixed', '--key-width', 4)
        self.refuse(b'aaaabbb', ', offset 4', 'cut short', *fixed_flags)
        self.refuse(b'aaaa\xff\xff\xff\xff', ', offset 4', 'not text', *fixed_flags, '--key-kind', 'text')

    def test_second_file_is_named(self):
        first, second = self.file('first', b'00\n'), self.file('second', b'11\nxx\n')
        done = self.latchkey('build', '--data', self.data, '--table', 't', '--key-kind', 'hex', first,
                             second, code=FAILURE)
        self.assertIn(f'{second}:2: ', done.err)

    def test_standard_input_is_named(self):
        done = self.latchkey('build', '--data', self.data, '--table', 't', '--key-kind', 'hex', '-',
                             stdin=b'00\nxx\n', code=FAILURE)
        self.assertIn('standard input:2: ', done.err)

    def test_line_layout_for_keys_that_do_not_fit_it(self):
        done = self.build('t', b'a\nbb\n', '--layout', 'line', code=FAILURE)
        self.assertIn('t.input:2: a key of 2 bytes after one of 1', done.err)
        done = self.build('t', b'k' * 124 + b'\n', '--layout', 'line', code=FAILURE)
        self.assertIn('at most 123 bytes beside such values; got keys of 124 bytes', done.err)
        self.build('t', b'k' * 123 + b'\n', '--layout', 'line')
        done = self.build('t', b'k' * 116 + b' v\n', '--layout', 'line', '--value-column', 'rest', code=FAILURE)
        self.assertIn('at most 115 bytes', done.err)

    def test_options_that_contradict_each_other(self):
        for flags in (('--format', 'lines', '--key-column', '2'), ('--format', 'fixed'),
                      ('--format', 'fixed', '--key-width', 4, '--key-kind', 'uuid'),
                      ('--format', 'csv', '--key-width', 4), ('--value-width', 65),
                      ('--value-width', 8), ('--format', 'lines', '--value-column', '2')):
            with self.subTest(flags):
                self.build('t', b'aaaa\n', *flags, code=FAILURE)
                self.assertFalse((self.data / 't').exists())

    def test_files_that_cannot_be_read(self):
        build = ['build', '--data', self.data, '--table', 't']
        done = self.latchkey(*build, self.folder / 'none', code=FAILURE)
        self.assertIn(f'{self.folder}/none: No such file', done.err)
        done = self.latchkey(*build, self.folder, code=FAILURE)
        self.assertIn(f'{self.folder}: Is a directory', done.err)
        self.assertFalse(self.data.exists())

    def test_an_unprivileged_user(self):
        secret = self.file('secret', b'a\n')
        secret.chmod(0o600 if os.geteuid() == 0 else 0)
        public = self.file('public', b'a\n')
        done = self.run_as_nobody(LATCHKEY, 'build', '--data', self.data, '--table', 't', secret)
        self.assertEqual((done.code, done.out), (FAILURE, b''))
        self.assertIn(f'{secret}: Permission denied', done.err)
        done = self.run_as_nobody(LATCHKEY, 'build', '--data', '/proc/latchkey', '--table', 't', public)
        self.assertEqual((done.code, done.out), (FAILURE, b''))
        self.assertIn('/proc/latchkey', done.err)


if __name__ == '__main__':
    unittest.main()
