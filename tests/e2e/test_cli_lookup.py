"""`latchkey` get, batch, inspect, dump and verify: the same straight from a data directory and from a server."""

import base64
import json
import os
import re
import socket
import unittest

import support
from support import FAILURE, NOT_FOUND, OK, USAGE, escape_tsv, parse_batch, parse_json_lines


class LookupTestCase(support.TestCase):
    """A server over self.data, and calls that ask both ways and check that the answers are equal."""

    def ask(self, server, *arguments, code=OK, stdin=b''):
        command, *rest = arguments
        local = self.latchkey(command, '--data', self.data, *rest, code=code, stdin=stdin)
        remote = self.latchkey(command, '--server', server.address, *rest, code=code, stdin=stdin)
        self.assertEqual(remote.out, local.out)
        self.assertEqual(remote.err, local.err)
        return local


class OutputTest(LookupTestCase):
    """One table with keys and values that need escapes."""
    ROWS = [(b'plain', b'value'), (b'tab\tkey', b'a\tb'), (b'back\\slash', b'\\'),
            ('kéy 🔑'.encode(), 'välue'.encode()), (b'\x01\x7f', b'\x00\x01\x1f\x7f'),
            (b'bytes', b'\xff\xfe\x80'), (b'lines', b'one\ntwo\r\n'), (b'empty', b''),
            ('\u0085'.encode(), '\u009b'.encode())]

    def setUp(self):
        super().setUp()
        content = b''.join(escape_tsv(key) + b'\t' + escape_tsv(value) + b'\n' for key, value in self.ROWS)
        self.build('text', content, '--format', 'tsv', '--key-kind', 'text', '--value-column', '2')
        self.build('raw', content, '--format', 'tsv', '--value-column', '2')
        self.server = self.start()

    def test_tsv(self):
        keys = [key for key, _ in self.ROWS]
        done = self.ask(self.server, 'get', '--table', 'text', *keys)
        self.assertEqual(done.out, b''.join(
            escape_tsv(key) + b'\tfound\t%d\t' % i + escape_tsv(value) + b'\n'
            for i, (key, value) in enumerate(self.ROWS)))
        self.assertEqual(self.ask(self.server, 'batch', '--table', 'text',
                                  stdin=b'\n'.join(keys)).out, done.out)

    def test_the_escapes_themselves(self):
        done = self.ask(self.server, 'get', '--table', 'text', 'tab\tkey', '\x01\x7f', 'bytes', 'lines')
        self.assertEqual(done.out, b'tab\\tkey\tfound\t1\ta\\tb\n'
                                   b'\\x01\\x7f\tfound\t4\t\\x00\\x01\\x1f\\x7f\n'
                                   b'bytes\tfound\t5\t\\xff\\xfe\\x80\n'
                                   b'lines\tfound\t6\tone\\ntwo\\x0d\\n\n')

    def test_raw_keys_are_typed_with_escapes(self):
        done = self.ask(self.server, 'get', '--table', 'raw', r'tab\tkey', r'\x01\x7f', r'b\x79tes', 'tab\tkey')
        self.assertEqual([row[2] for row in parse_batch(done.out)], [1, 4, 5, 1])

    def test_json(self):
        done = self.ask(self.server, 'get', '--table', 'text', '--json', 'none', *[key for key, _ in self.ROWS],
                        code=NOT_FOUND)
        expected = [{'key': 'none', 'status': 'absent'}]
        for i, (key, value) in enumerate(self.ROWS):
            row = {'key': key.decode(), 'status': 'found', 'doc_id': i}
            try:
                row['value'] = value.decode()
            except UnicodeDecodeError:
                row['value_hex'] = value.hex()
            expected.append(row)
        self.assertEqual(parse_json_lines(done.out), expected)
        keys = b'none\n' + b'\n'.join(key for key, _ in self.ROWS)
        batch = self.ask(self.server, 'batch', '--table', 'text', '--json', stdin=keys, code=NOT_FOUND)
        self.assertEqual(batch.out, done.out)

    def test_dump(self):
        out = self.latchkey('dump', '--data', self.data, '--table', 'text').out
        self.assertEqual(sorted(out.split(b'\n')[:-1]), sorted(
            escape_tsv(key) + b'\t%d\t' % i + escape_tsv(value) for i, (key, value) in enumerate(self.ROWS)))
        rows = parse_json_lines(self.latchkey('dump', '--data', self.data, '--table', 'text', '--json').out)
        self.assertEqual({(row['key'], row['doc_id']) for row in rows},
                         {(key.decode(), i) for i, (key, _) in enumerate(self.ROWS)})

    def test_a_dump_builds_the_same_table_again(self):
        for kind in ('text', 'raw'):
            dump = self.latchkey('dump', '--data', self.data, '--table', kind).out
            self.build('again', dump, '--format', 'tsv', '--key-kind', kind, '--id-column', '2',
                       '--value-column', '3')
            again = self.latchkey('dump', '--data', self.data, '--table', 'again').out
            self.assertEqual(sorted(again.splitlines()), sorted(dump.splitlines()))

    def test_inspect_tells_the_same_both_ways(self):
        local = json.loads(self.latchkey('inspect', '--data', self.data, '--table', 'text', '--json').out)
        remote = json.loads(self.latchkey('inspect', '--server', self.server.address, '--table', 'text',
                                          '--json').out)
        self.assertEqual(local['rows'], len(self.ROWS))
        self.assertEqual((local['key_kind'], local['values'], local['doc_id_bits']), ('text', 'bytes', 32))
        for name in remote.keys() & local.keys() - {'segments'}:
            self.assertEqual(remote[name], local[name], name)
        self.assertEqual(len(remote['segments']), len(local['segments']))
        for theirs, ours in zip(remote['segments'], local['segments']):
            for name, value in theirs.items():
                self.assertEqual(value, ours[name], name)
        self.assertEqual(remote['limits']['batch_keys_max'], 4096)

    def test_inspect_for_people(self):
        done = self.latchkey('inspect', '--data', self.data, '--table', 'text')
        self.assertIn(f'{len(self.ROWS)} rows, key kind text, 32-bit doc ids, values bytes', done.out.decode())
        done = self.latchkey('inspect', '--server', self.server.address, '--table', 'text')
        self.assertIn('limits: 4096 keys a batch', done.out.decode())

    def test_verify(self):
        done = self.latchkey('verify', '--data', self.data, '--table', 'text')
        self.assertIn(f'generation 1 is sound: 1 segments, {len(self.ROWS)} rows', done.out.decode())


class ExitCodesTest(LookupTestCase):

    def setUp(self):
        super().setUp()
        self.build('t', b'00\n11\n', '--key-kind', 'hex')
        self.server = self.start()
        self.both = [['--data', self.data], ['--server', self.server.address]]

    def test_found_and_absent(self):
        self.ask(self.server, 'get', '--table', 't', '00', '11', code=OK)
        self.ask(self.server, 'get', '--table', 't', '00', '22', code=NOT_FOUND)
        self.ask(self.server, 'batch', '--table', 't', stdin=b'22\n00\n', code=NOT_FOUND)
        self.assertEqual(self.ask(self.server, 'batch', '--table', 't', stdin=b'', code=OK).out, b'')

    def test_a_malformed_key_keeps_its_line_and_fails_the_call(self):
        done = self.ask(self.server, 'batch', '--table', 't', stdin=b'00\nxyz\n\n11\n22', code=FAILURE)
        self.assertEqual([row[1] for row in parse_batch(done.out)],
                         ['found', 'malformed', 'malformed', 'found', 'absent'])
        self.assertIn("standard input:2: not hexadecimal", done.err)
        self.assertIn("standard input:3: empty key", done.err)
        done = self.ask(self.server, 'get', '--table', 't', 'xyz', '--json', code=FAILURE)
        self.assertEqual(parse_json_lines(done.out), [{'key': 'xyz', 'status': 'malformed'}])
        self.assertIn('key 1: not hexadecimal', done.err)

    def test_malformed_keys_in_a_later_batch_are_counted_from_the_first_line(self):
        stdin = b'00\n' * 5000 + b'zz\n'
        done = self.ask(self.server, 'batch', '--table', 't', stdin=stdin, code=FAILURE)
        self.assertIn('standard input:5001: not hexadecimal', done.err)

    def test_carriage_returns_are_dropped(self):
        done = self.ask(self.server, 'batch', '--table', 't', stdin=b'00\r\n11\r\n')
        self.assertEqual([row[0] for row in parse_batch(done.out)], [b'00', b'11'])

    def test_unknown_table(self):
        for where in self.both:
            for command in (['get', '00'], ['batch'], ['inspect']):
                done = self.latchkey(*command, *where, '--table', 'nope', code=FAILURE)
                self.assertIn('nope', done.err)
                self.assertEqual(done.out, b'')
        for command in ('verify', 'dump'):
            done = self.latchkey(command, '--data', self.data, '--table', 'nope', code=FAILURE)
            self.assertIn('nope', done.err)

    def test_a_table_name_that_leads_out_of_the_folder(self):
        (self.data / 'sub').mkdir()
        for name in ('../t', 'sub/../t', '.', '', 'x' * 129):
            done = self.latchkey('get', '00', '--data', self.data / 'sub', '--table', name, code=FAILURE)
            self.assertIn('table name', done.err)

    def test_no_data_directory(self):
        for command in (['get', '00'], ['batch'], ['inspect'], ['verify'], ['dump']):
            done = self.latchkey(*command, '--data', self.folder / 'none', '--table', 't', code=FAILURE)
            self.assertIn(f'{self.folder}/none', done.err)

    def test_unreachable_server(self):
        for command in (['get', '00'], ['batch'], ['inspect']):
            for address in ('127.0.0.1:1', f'unix:{self.folder}/none'):
                done = self.latchkey(*command, '--server', address, '--table', 't', code=FAILURE)
                self.assertIn(address, done.err)

    def test_a_server_that_never_answers(self):
        with socket.create_server(('127.0.0.1', 0)) as silent:
            address = f'127.0.0.1:{silent.getsockname()[1]}'
            self.latchkey('get', '00', '--server', address, '--table', 't', '--timeout-s', '0.2',
                          code=FAILURE)

    def test_usage_errors(self):
        where = ['--data', self.data, '--table', 't']
        for arguments in ([], ['frobnicate'], ['--frobnicate'], ['get'], ['get', *where],
                          ['get', '00', '--table', 't'], ['get', '00', '--data', self.data],
                          ['get', '00', *where, '--server', 'x:1'], ['get', '00', *where, '--timeout-s', '0'],
                          ['batch', *where, 'extra'], ['dump', '--table', 't'],
                          ['verify', *where, '--server', 'x:1'], ['build', *where],
                          ['build', *where, '--format', 'xml', '-'], ['build', *where, '--key-kind', 'x', '-'],
                          ['build', *where, '--doc-id-bits', '48', '-'], ['build', *where, '--memory', '1', '-'],
                          ['build', *where, '--filter-bits', '33', '-'], ['build', *where, '--layout', 'x', '-'],
                          ['build', *where, '--duplicates', 'x', '-'], ['build', *where, '--key-width', '0', '-']):
            with self.subTest(arguments):
                done = support.run([support.LATCHKEY, *arguments])
                self.assertEqual((done.code, done.out), (USAGE, b''))
                self.assertIn('--help', done.err)

    def test_a_table_that_may_not_be_read(self):
        manifest = self.data / 't' / 'g00000001.manifest'
        manifest.chmod(0o000)
        done = self.run_as_nobody(support.LATCHKEY, 'get', '00', '--data', self.data, '--table', 't')
        self.assertEqual((done.code, done.out), (FAILURE, b''))
        self.assertIn(f'{manifest}: Permission denied', done.err)

    def test_standard_input_that_cannot_be_read(self):
        for where in self.both:
            folder = os.open(self.folder, os.O_RDONLY)  # it opens, but reading it fails
            self.addCleanup(os.close, folder)
            done = self.latchkey('batch', *where, '--table', 't', stdin=folder, code=FAILURE)
            self.assertIn('cannot read standard input', done.err)


class HelpTest(support.TestCase):
    COMMANDS = {support.LATCHKEY: ['build', 'delete', 'merge', 'get', 'batch', 'inspect', 'verify', 'dump',
                                   'generations', 'rollback', 'diff', 'gc', 'status', 'reload'],
                support.LATCHKEYD: ['healthcheck']}

    def test_version(self):
        for program, name in ((support.LATCHKEY, 'latchkey'), (support.LATCHKEYD, 'latchkeyd')):
            done = support.run([program, '--version'])
            self.assertEqual((done.code, done.err), (OK, ''))
            self.assertRegex(done.out.decode(), rf'^{name} \d+\.\d+\.\d+\n$')

    def test_help(self):
        for program, commands in self.COMMANDS.items():
            main = support.run([program, '--help'])
            self.assertEqual((main.code, main.err), (OK, ''))
            for command in commands:
                self.assertIn(f'\n  {command} ', main.out.decode())
                done = support.run([program, command, '--help'])
                self.assertEqual((done.code, done.err), (OK, ''))
                self.assertIn('Usage: ', done.out.decode())
                for line in done.out.decode().splitlines():
                    if line.startswith('  -'):
                        self.assertNotRegex(line, r'^\s+\S+$', 'an option without a word about it')

    def test_help_names_every_flag_of_build(self):
        out = support.run([support.LATCHKEY, 'build', '--help']).out.decode()
        for flag in ('--data', '--table', '--format', '--key-column', '--key-kind', '--value-column',
                     '--id-column', '--header', '--key-width', '--value-width', '--doc-id-bits',
                     '--duplicates', '--layout', '--filter-bits', '--memory', '--append', '--json'):
            self.assertIn(f'  {flag} ', out)


class BatchTest(LookupTestCase):

    def test_order_duplicates_and_more_keys_than_a_batch(self):
        rows = {f'{self.random.getrandbits(64)}'.encode(): i for i in range(6000)}
        self.build('t', b''.join(key + b'\n' for key in rows), '--key-kind', 'u64')
        keys = list(rows) + [b'%d' % i for i in range(6000)]
        asked = [self.random.choice(keys) for _ in range(20_000)]
        server = self.start()
        done = self.ask(server, 'batch', '--table', 't', stdin=b'\n'.join(asked), code=NOT_FOUND)
        expected = [(key, 'found', rows[key], b'') if key in rows else (key, 'absent', None, b'')
                    for key in asked]
        self.assert_rows(parse_batch(done.out), expected, 'batch')

    def test_get_takes_more_keys_than_a_batch(self):
        self.build('t', b'a\n')
        server = self.start('--batch-keys-max', 7)
        done = self.ask(server, 'get', '--table', 't', *['a', 'b'] * 50, code=NOT_FOUND)
        self.assertEqual([row[1] for row in parse_batch(done.out)], ['found', 'absent'] * 50)

    def test_keys_of_every_length(self):
        lengths = [1, 2, 30, 31, 32, 33, 127, 128, 1000, 16_383, 32_765, 32_766]
        keys = [self.random.randbytes(length) for length in lengths] * 30
        rows = dict.fromkeys(keys)
        self.build('t', b''.join(key.hex().encode() + b'\n' for key in rows), '--key-kind', 'hex')
        server = self.start()
        self.random.shuffle(keys)  # in all far more bytes than a request may have
        stdin = b''.join(key.hex().encode() + b'\n' for key in keys)
        done = self.ask(server, 'batch', '--table', 't', stdin=stdin)
        doc_ids = {key: i for i, key in enumerate(rows)}
        self.assert_rows([row[2] for row in parse_batch(done.out)], [doc_ids[key] for key in keys], 'doc ids')
        done = self.ask(server, 'batch', '--table', 't', stdin=b'00' * 32_767 + b'\n', code=FAILURE)
        self.assertIn('key too long', done.err)

    def test_values_larger_than_a_reply_come_whole(self):
        sizes = {b'ten': 10 << 20, b'largest': 16 << 20, **{b'k%d' % i: 100 << 10 for i in range(200)}}
        rows = {key: base64.b64encode(self.random.randbytes(size))[:size] for key, size in sizes.items()}
        content = b''.join(key + b'\t' + value + b'\n' for key, value in rows.items())
        self.build('t', content, '--format', 'tsv', '--value-column', '2')
        asked = list(rows)
        self.random.shuffle(asked)
        asked = asked[:100] + [b'none', b'ten'] + asked
        expected = [rows.get(key, b'') for key in asked]
        stdin = b'\n'.join(asked)
        # By one reply; by several; and with replies that are smaller than any of the values.
        for flags in ((), ('--reply-bytes-max', 5 << 20), ('--reply-bytes-max', 96 << 10)):
            server = self.start(*flags)
            done = self.latchkey('batch', '--server', server.address, '--table', 't', stdin=stdin,
                                 code=NOT_FOUND)
            self.assert_rows([row[3] for row in parse_batch(done.out)], expected, f'values, {flags}')
            server.stop()
        done = self.latchkey('batch', '--data', self.data, '--table', 't', stdin=stdin, code=NOT_FOUND)
        self.assert_rows([row[3] for row in parse_batch(done.out)], expected, 'values')


class VerifyTest(support.TestCase):

    def setUp(self):
        super().setUp()
        rows = ((b'%016x' % i, b'v' * 300) for i in range(3000))
        self.build('t', b''.join(key + b' ' + value + b'\n' for key, value in rows), '--key-kind', 'hex',
                   '--value-column', 'rest')
        self.segment = self.data / 't' / 'g00000001-0.segment'
        self.manifest = self.data / 't' / 'g00000001.manifest'

    def verify(self, code=FAILURE):
        return self.latchkey('verify', '--data', self.data, '--table', 't', code=code)

    def test_any_damaged_page_is_named(self):
        whole = self.segment.read_bytes()
        sections = json.loads(self.latchkey('inspect', '--data', self.data, '--table', 't',
                                            '--json').out)['segments'][0]['section_bytes']
        self.assertGreater(sections['values'], 0)
        seen = set()
        pages = [offset for offset in range(0, len(whole), 4096) if any(whole[offset:offset + 4096])]
        # Every section begins at a multiple of 64 KiB.
        chosen = [offset for offset in pages if offset % 65_536 == 0] + self.random.sample(pages, 20)
        for offset in chosen:
            # The first bytes of a section are its own; later ones may lie behind the end of a short one.
            span = 8 if offset % 65_536 == 0 else min(4096, len(whole) - offset)
            at = offset + self.random.randrange(span)
            damaged = bytearray(whole)
            damaged[at] ^= 1 << self.random.randrange(8)
            self.segment.write_bytes(damaged)
            done = self.verify()
            self.assertIn(str(self.segment), done.err)
            if at >= 4096 and 'checksums' not in done.err:
                size, offset = re.search(r': (\d+) bytes at offset (\d+) are damaged', done.err).groups()
                self.assertIn(at, range(int(offset), int(offset) + int(size)))
            for section in sections:
                if f"section '{section}'" in done.err:
                    seen.add(section)
        self.assertLessEqual({'filter', 'pilots', 'lines', 'values', 'hashes'}, seen)
        self.segment.write_bytes(whole)
        self.verify(OK)

    def test_a_file_cut_short_or_gone(self):
        whole = self.segment.read_bytes()
        for size in (0, 1, 4095, 4096, len(whole) // 2, len(whole) - 1):
            self.segment.write_bytes(whole[:size])
            self.assertIn(str(self.segment), self.verify().err)
        self.segment.unlink()
        self.assertIn(f'{self.segment}: No such file', self.verify().err)

    def test_a_segment_of_another_table(self):
        self.build('other', b'00\n', '--key-kind', 'hex')
        self.segment.write_bytes((self.data / 'other' / self.segment.name).read_bytes())
        for command in (['verify'], ['dump'], ['get', '00'], ['inspect']):
            done = self.latchkey(*command, '--data', self.data, '--table', 't', code=FAILURE)
            self.assertIn(str(self.segment), done.err)

    def test_a_manifest_that_was_edited_or_cut(self):
        whole = self.manifest.read_bytes()
        for content in (b'', whole[:-1], whole[:100], whole.replace(b'"rows": 3000', b'"rows": 3001'),
                        whole + b' ', b'\x00' * len(whole)):
            self.assertNotEqual(content, whole)
            self.manifest.write_bytes(content)
            self.assertIn(str(self.manifest), self.verify().err)

    def test_dump_fails_on_a_damaged_record(self):
        whole = self.segment.read_bytes()
        at = whole.index((1234).to_bytes(8, 'big')) // 4096 * 4096
        self.segment.write_bytes(whole[:at] + bytes(4096) + whole[at + 4096:])
        self.latchkey('dump', '--data', self.data, '--table', 't', code=FAILURE)


if __name__ == '__main__':
    unittest.main()
