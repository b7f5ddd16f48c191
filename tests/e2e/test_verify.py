"""What a server checks before it serves and while it does, what that costs in memory, and how it shows."""

import json
import os
import re
import shutil
import unittest
import urllib.request

import support
from rpc_test_case import BATCH_GET, DAMAGED_DATA, FOUND, GET, NOT_DONE, RpcTestCase
from support import FAILURE, LATCHKEYD
from test_memory_group import MemoryGroup

KEYS = [b'key-%05d' % number for number in range(4000)]
OLD, NEW = KEYS[:2000], KEYS[2000:]


VALUE_BYTES = 200


def value(word):
    return word.ljust(VALUE_BYTES, b'.')


def rows(keys, word):
    return b''.join(b'%s %s\n' % (key, value(word)) for key in keys)


def flip(path, offset):
    """Changes a byte where it lies, as a bad disk would."""
    with open(path, 'r+b') as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x20]))


class VerifyTest(RpcTestCase):

    def make(self, table='t'):
        """A table of two segments: keys OLD, and then NEW."""
        self.build(table, rows(OLD, b'old'), '--value-column', 'rest')
        self.build(table, rows(NEW, b'new'), '--value-column', 'rest', '--append')

    def start(self, *flags, **options):
        server = super().start('--http', '127.0.0.1:0', *flags, **options)
        server.metrics = server.wait_for_log(r' metrics address=(\S+)').group(1)
        return server

    def metric(self, server, name, table='t'):
        with urllib.request.urlopen(f'http://{server.metrics}/metrics', timeout=60) as reply:
            text = reply.read().decode()
        found = re.search(rf'^{name}{{table="{table}"}} (\S+)$', text, re.MULTILINE)
        return float(found.group(1)) if found else None

    def status(self, server, table='t'):
        out = self.latchkey('status', '--server', server.address, '--json').out
        return next((each for each in json.loads(out)['tables'] if each['table'] == table), None)

    def test_all_is_checked_in_the_background(self):
        self.make()
        server = self.start()
        support.wait_until(lambda: self.status(server)['unchecked_bytes'] == '0', 'the check')
        self.assertEqual(self.metric(server, 'latchkey_unchecked_bytes'), 0)
        self.assertEqual(self.status(server)['quarantined'], [])
        # Not where that is switched off: then there is what the warm-up did not read.
        idle = self.start('--verify-mib-per-s', '0')
        sizes = [sum(support.sections_of(path)[name][1] for name in ('lines', 'records', 'values'))
                 for path in (self.data / 't').glob('*.segment')]
        self.assertEqual(self.status(idle)['unchecked_bytes'], str(sum(sizes)))
        # Unless it was done before it served.
        strict = self.start('--verify-mib-per-s', '0', '--verify', 'all')
        self.assertEqual(self.status(strict)['unchecked_bytes'], '0')
        text = self.latchkey('status', '--server', idle.address).out.decode()
        self.assertIn('not read against their checksums yet', text)

    def test_damage_is_quarantined_while_it_serves(self):
        self.make()
        path = self.data / 't' / 'g00000001-0.segment'
        at = support.sections_of(path)['values'][0]
        flip(path, at + 17)
        server = self.start()
        client = self.connect(server)
        server.wait_for_log(rf" error damaged table=t: .*{path.name}: section 'values' is damaged at "
                            rf'offset {at}$')
        support.wait_until(lambda: self.status(server)['quarantined'], 'the quarantine')
        self.assertEqual(self.status(server)['quarantined'], [path.name])
        self.assertEqual(self.metric(server, 'latchkey_quarantined_segments'), 1)
        # Keys whose values lie in that block are not answered, all others are.
        reply = client.call(BATCH_GET, table='t', keys=OLD + NEW)
        self.assertEqual({(row.outcome, row.reason) for row in reply.rows[:len(OLD)]},
                         {(NOT_DONE, DAMAGED_DATA), (FOUND, 0)})
        damaged = sum(row.outcome == NOT_DONE for row in reply.rows)
        self.assertAlmostEqual(damaged, 65536 / (VALUE_BYTES + 2), delta=2)
        self.assertEqual({row.value for row in reply.rows if row.outcome == FOUND},
                         {value(b'old'), value(b'new')})
        self.assertGreaterEqual(self.metric(server, 'latchkey_damaged_keys_total'), damaged)
        # The same segment in the next generation has to prove itself, and can't; when it is mended
        # it does.
        self.build('t', rows([KEYS[0]], b'newer'), '--value-column', 'rest', '--append')
        error = support.wait_until(lambda: self.status(server)['reload_error'], 'the error')
        self.assertIn(f"{path.name}: section 'values' is damaged at offset {at}", error)
        self.assertEqual(self.status(server)['generation'], '2')
        flip(path, at + 17)
        support.wait_until(lambda: self.status(server)['generation'] == '3', 'the mended segment')
        reply = client.call(BATCH_GET, table='t', keys=OLD + NEW)
        self.assertEqual([row.value for row in reply.rows],
                         [value(b'newer')] + [value(b'old')] * (len(OLD) - 1) +
                         [value(b'new')] * len(NEW))

    def test_what_must_be_verified_first(self):
        """Each section, at each level: refused before it serves, or found while it does."""
        self.make()
        path = self.data / 't' / 'g00000001-0.segment'
        for name in ('filter', 'pilots', 'lines', 'values'):
            at = support.sections_of(path)[name][0]
            flip(path, at + 3)
            for level in ('header', 'index', 'all'):
                with self.subTest(section=name, level=level):
                    first = level == 'all' or (level == 'index' and name in ('filter', 'pilots'))
                    if not first:
                        server = self.start('--verify', level)
                        support.wait_until(lambda: self.status(server)['quarantined'],
                                           'the quarantine')
                        server.stop()
                        continue
                    done = support.run([LATCHKEYD, '--data', self.data, '--listen', '127.0.0.1:0',
                                        '--verify', level])
                    self.assertEqual(done.code, FAILURE)
                    self.assertIn(f"cannot start: {path}: section '{name}' is damaged at offset {at}",
                                  done.err)
            flip(path, at + 3)

    def test_a_generation_that_fails_is_counted(self):
        self.make()
        server = self.start('--verify', 'all')
        client = self.connect(server)
        self.assertEqual(self.metric(server, 'latchkey_reloads_total'), 1)
        self.assertEqual(self.metric(server, 'latchkey_reload_failures_total'), 0)
        self.assertEqual(self.metric(server, 'latchkey_reload_failing'), 0)
        elsewhere = self.folder / 'elsewhere'
        shutil.copytree(self.data, elsewhere)
        path = self.file('more', rows([b'key-more'], b'more'))
        self.latchkey('build', '--data', elsewhere, '--table', 't', '--value-column', 'rest',
                      '--append', path)
        new = elsewhere / 't' / 'g00000003-0.segment'
        flip(new, support.sections_of(new)['lines'][0])
        for file in (new, elsewhere / 't' / 'g00000003.manifest'):
            shutil.copy(file, self.data / 't')
        support.wait_until(lambda: self.metric(server, 'latchkey_reload_failing') == 1, 'the failure')
        self.assertGreaterEqual(self.metric(server, 'latchkey_reload_failures_total'), 1)
        self.assertEqual(self.metric(server, 'latchkey_generation'), 2)
        self.assertGreaterEqual(int(self.status(server)['reload_failures']), 1)
        self.assertIn("section 'lines' is damaged", self.status(server)['reload_error'])
        self.assertEqual(client.call(GET, table='t', key=KEYS[0]).value, value(b'old'))
        text = self.latchkey('status', '--server', server.address).out.decode()
        self.assertIn('a newer generation does not serve: ', text)
        here = self.data / 't' / new.name
        flip(here, support.sections_of(new)['lines'][0])
        support.wait_until(lambda: self.metric(server, 'latchkey_generation') == 3, 'the mended one')
        self.assertEqual(self.metric(server, 'latchkey_reload_failing'), 0)
        self.assertEqual(self.metric(server, 'latchkey_reloads_total'), 2)
        self.assertEqual(client.call(GET, table='t', key=b'key-more').value, value(b'more'))

    def test_a_table_that_never_opened_is_shown(self):
        self.make()
        server = self.start()
        elsewhere = self.folder / 'elsewhere'
        shutil.copytree(self.data / 't', elsewhere)
        (self.data / 'late').mkdir()
        shutil.copy(elsewhere / 'g00000002.manifest', self.data / 'late')
        status = support.wait_until(lambda: self.status(server, 'late'), 'the table')
        self.assertEqual(status['generation'], '0')
        self.assertIn('g00000002-0.segment', status['reload_error'])
        self.assertEqual(self.metric(server, 'latchkey_reload_failing', 'late'), 1)
        text = self.latchkey('status', '--server', server.address, '--table', 'late').out.decode()
        self.assertIn('  it does not serve: ', text)
        for file in elsewhere.glob('*.segment'):
            shutil.copy(file, self.data / 'late')
        support.wait_until(lambda: self.status(server, 'late')['generation'] == '2', 'its files')
        self.assertEqual(self.metric(server, 'latchkey_reload_failing', 'late'), 0)
        shutil.rmtree(self.data / 'late')
        support.wait_until(lambda: self.status(server, 'late') is None, 'it to go')
        self.assertIsNone(self.metric(server, 'latchkey_reload_failing', 'late'))

    def test_the_address_for_metrics_cannot_be_had(self):
        self.make()
        server = self.start()
        for address in (server.metrics, 'nonsense', '192.0.2.1:1'):
            done = support.run([LATCHKEYD, '--data', self.data, '--listen', '127.0.0.1:0', '--http',
                                address])
            self.assertEqual(done.code, FAILURE)
            self.assertIn(f'cannot start: cannot listen on {address}: expected HOST:PORT', done.err)

    def test_a_swap_that_memory_does_not_take_is_refused(self):
        """In a group of its own: the old generation and the new one do not both fit."""
        self.build('t', rows(OLD, b'old'), '--value-column', 'rest')
        group = MemoryGroup(f'latchkey-swap-{os.getpid()}', 320 << 20)
        self.addCleanup(group.remove)
        server = self.spawn(['sh', '-c', 'echo $$ > "$0" && exec "$@"', group.procs(), LATCHKEYD,
                             '--data', self.data, '--listen', f'unix:{self.folder}/socket',
                             '--memory-mode', 'huge'])
        server.address = server.wait_for_log(r' serving address=(\S+)').group(1)
        client = self.connect(server)
        large = b''.join(b'key-%06d %s\n' % (number, b'v' * 5000) for number in range(60_000))
        self.build('t', large, '--value-column', 'rest')
        error = support.wait_until(lambda: self.status(server)['reload_error'], 'the refusal')
        mib = sum(path.stat().st_size for path in (self.data / 't').glob('g00000002*')) >> 20
        self.assertGreater(mib, 250)
        self.assertRegex(error, rf'generation 2 beside generation 1: {mib} MiB of segments and 0 MiB of '
                         rf'segment map: it takes {mib} MiB of memory, and .*{group.path.name}.* has '
                         r'\d+ MiB left, of which 128 are to stay free')
        self.assertEqual(client.call(GET, table='t', key=KEYS[0]).value, value(b'old'))
        self.assertEqual(group.kills(), 0)
        # When there is room it is taken over, without a word from anybody.
        group.write('memory.limit_in_bytes' if group.version == 1 else 'memory.max', 4 << 30)
        support.wait_until(lambda: self.status(server)['generation'] == '2', 'the swap')
        self.assertEqual(client.call(GET, table='t', key=b'key-000007').value, b'v' * 5000)


if __name__ == '__main__':
    unittest.main()
