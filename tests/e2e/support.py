"""What the tests of this folder share: the programs, folders and servers that go away, rows, and seeds.

The programs come from the folder that LATCHKEY_BIN_DIR names, else from the release build of this tree.
Whatever is random comes from one seed, which is printed; LATCHKEY_TEST_SEED=N runs the same again.
"""

import collections
import contextlib
import fcntl
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get('LATCHKEY_BIN_DIR', ROOT / 'build' / 'release' / 'bin'))
LATCHKEY = str(BIN_DIR / 'latchkey')
LATCHKEYD = str(BIN_DIR / 'latchkeyd')
CACHE_DIR = pathlib.Path(
    os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache') / 'latchkey-tests'
TIMEOUT_S = 120  # of anything that should end by itself; far more than it takes

OK, NOT_FOUND, USAGE, FAILURE = 0, 1, 2, 3  # exit codes

SEED = int(os.environ.get('LATCHKEY_TEST_SEED', random.SystemRandom().randrange(1 << 32)))
print(f'LATCHKEY_TEST_SEED={SEED}', file=sys.stderr, flush=True)

# No test wants what the caller's shell says to the daemon.
for _name in [name for name in os.environ if name.startswith('LATCHKEY_')]:
    if _name not in ('LATCHKEY_BIN_DIR', 'LATCHKEY_TEST_SEED'):
        del os.environ[_name]

Finished = collections.namedtuple('Finished', 'code out err')


def _as_arguments(things):
    return [thing if isinstance(thing, bytes) else str(thing) for thing in things]


def run(arguments, stdin=b'', timeout_s=TIMEOUT_S, **options):
    """Runs a program to its end: exit code, standard output (bytes), standard error (text)."""
    if isinstance(stdin, bytes):
        options['input'] = stdin
    else:
        options['stdin'] = stdin
    options.setdefault('stdout', subprocess.PIPE)
    options.setdefault('stderr', subprocess.PIPE)
    done = subprocess.run(_as_arguments(arguments), timeout=timeout_s, **options)
    return Finished(done.returncode, done.stdout, (done.stderr or b'').decode('utf-8', 'replace'))


def wait_until(condition, what, timeout_s=TIMEOUT_S):
    """Returns the first true result of condition()."""
    end = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f'waited {timeout_s} s in vain for: {what}')
        time.sleep(0.002)


@contextlib.contextmanager
def cache_lock(name):
    """Lets one process at a time fill a part of the cache."""
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    with open(CACHE_DIR / f'{name}.lock', 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Process:
    """A program that runs beside the test. What it says on standard error is kept, line by line."""

    def __init__(self, arguments, **options):
        self._child = subprocess.Popen(_as_arguments(arguments), stderr=subprocess.PIPE, **options)
        self.pid = self._child.pid
        self.stdin = self._child.stdin
        self._lines = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._child.stderr:
            with self._changed:
                self._lines.append(line.decode('utf-8', 'replace').rstrip('\n'))
                self._changed.notify_all()
        with self._changed:
            self._lines.append(None)  # nothing more will come
            self._changed.notify_all()

    def log(self):
        with self._changed:
            return '\n'.join(line for line in self._lines if line is not None)

    def wait_for_log(self, pattern):
        """The first match of `pattern` in the log; fails if the program ends without one."""
        seen = 0
        end = time.monotonic() + TIMEOUT_S
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    if line is None:
                        raise AssertionError(f'ended without saying {pattern!r}:\n{self.log()}')
                    match = re.search(pattern, line)
                    if match:
                        return match
                seen = len(self._lines)
                if not self._changed.wait(max(0, end - time.monotonic())):
                    raise AssertionError(f'did not say {pattern!r} in time:\n{self.log()}')

    def running(self):
        return self._child.poll() is None

    def send_signal(self, number):
        self._child.send_signal(number)

    def wait(self, timeout_s=TIMEOUT_S):
        """Waits for the end: the exit code."""
        code = self._child.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def kill(self):
        """Ends it if it still runs, and leaves nothing of it."""
        if self.running():
            self._child.kill()
        self.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


class Server(Process):
    """A daemon on a free port; `address` is where it listens first."""

    def __init__(self, data_dir, *flags, listen='127.0.0.1:0', environment=None):
        super().__init__([LATCHKEYD, '--data', data_dir, '--listen', listen, *flags],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
        try:
            self.address = self.wait_for_log(r' serving address=(\S+)').group(1)
        except BaseException:
            self.kill()
            raise

    def port_is_open(self):
        host, port = self.address.rsplit(':', 1)
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def stop(self):
        """Ends it the way an init system does, and checks that it went well."""
        self.send_signal(signal.SIGTERM)
        code = self.wait()
        if code != 0:
            raise AssertionError(f'the server ended with {code}:\n{self.log()}')
        self.kill()


class TestCase(unittest.TestCase):
    """A test with a folder of its own and random numbers that depend on the seed and its name."""

    maxDiff = 4000

    def setUp(self):
        self.random = random.Random(f'{SEED} {self.id()}')
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='latchkey-e2e-'))
        self.addCleanup(shutil.rmtree, self.folder)
        self.folder.chmod(0o755)  # also for those who run as nobody
        self.data = self.folder / 'data'

    @classmethod
    def for_class(cls):
        """To be called by setUpClass: a test case whose folder and servers last as long as the class."""
        shared = TestCase()
        shared.setUp()
        cls.addClassCleanup(shared.doCleanups)
        return shared

    def start(self, *flags, data=None, **options):
        server = Server(data or self.data, *flags, **options)
        self.addCleanup(server.kill)
        return server

    def spawn(self, arguments, **options):
        process = Process(arguments, **options)
        self.addCleanup(process.kill)
        return process

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def latchkey(self, *arguments, code=OK, stdin=b'', **options):
        """Runs `latchkey` and checks its exit code. On success it has nothing to complain about."""
        done = run([LATCHKEY, *arguments], stdin=stdin, **options)
        self.assertEqual(done.code, code, f'latchkey {arguments[0]}: {done.err}')
        if code in (OK, NOT_FOUND):
            self.assertEqual(done.err, '')
        else:
            self.assertNotEqual(done.err, '', 'it fails without a word')
        return done

    def run_as_nobody(self, program, *arguments):
        """Runs a program of ours without root's right to read everything."""
        # A copy, since the tree may stand where only its owner can go.
        copy = shutil.copy(program, self.folder)
        command = [copy, *arguments]
        if os.geteuid() == 0:
            command = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', '--', *command]
        return run(command)

    def build(self, table, content, *flags, code=OK, **options):
        """Builds a table of self.data from an input that holds `content`."""
        path = self.file(f'{table}.input', content)
        return self.latchkey('build', '--data', self.data, '--table', table, *flags, path, code=code,
                             **options)

    def assert_rows(self, actual, expected, what):
        """Compares dicts or lists of rows; tells the first difference, not megabytes."""
        if actual == expected:
            return
        if isinstance(expected, dict):
            keys = expected.keys() | actual.keys()
            wrong = [key for key in keys if actual.get(key) != expected.get(key)]
        else:
            self.assertEqual(len(actual), len(expected), f'{what}: number of rows')
            wrong = [i for i, row in enumerate(expected) if actual[i] != row]
        first = wrong[0]
        got = actual.get(first) if isinstance(actual, dict) else actual[first]
        want = expected.get(first) if isinstance(expected, dict) else expected[first]
        self.fail(f'{what}: {len(wrong)} rows differ, first at {str(first)[:200]!r}: '
                  f'expected {str(want)[:200]!r}, got {str(got)[:200]!r}')


def lock_is_held(table_dir):
    """Whether a writer is at work; without taking the lock to find out."""
    lock = table_dir / 'lock'
    with open('/proc/locks') as locks:
        return lock.exists() and any(line.split()[5].endswith(f':{lock.stat().st_ino}')
                                     for line in locks if ' -> ' not in line)


SECTIONS = ('directory', 'filter', 'pilots', 'lines', 'records', 'values', 'hashes', 'checksums')


def sections_of(segment):
    """Where the sections of a segment file lie, from its header: name -> (offset, size in bytes)."""
    with open(segment, 'rb') as file:
        header = file.read(4096)
    return {name: struct.unpack_from('<QQ', header, 120 + 16 * i) for i, name in enumerate(SECTIONS)}


# --- rows ----------------------------------------------------------------------------------------------------

_TO_ESCAPE = re.compile(rb'[^ -\[\]-~]')
_ESCAPES = {'\t': '\\t', '\n': '\\n', '\\': '\\\\'}


def escape_tsv(data):
    """The escaped form of TSV output: \\t \\n \\\\, and \\xHH for what is not printable or not UTF-8."""
    if not _TO_ESCAPE.search(data):
        return data
    parts = []
    for character in data.decode('utf-8', 'surrogateescape'):
        point = ord(character)
        if character in _ESCAPES:
            parts.append(_ESCAPES[character])
        elif 0xDC80 <= point <= 0xDCFF:
            parts.append(f'\\x{point - 0xDC00:02x}')
        elif point < 0x20 or 0x7F <= point < 0xA0:
            parts += [f'\\x{byte:02x}' for byte in character.encode()]
        else:
            parts.append(character)
    return ''.join(parts).encode()


def unescape_tsv(text):
    """The inverse of escape_tsv."""
    def replace(match):
        escape = match.group(1)
        if escape[:1] == b'x':
            return bytes([int(escape[1:], 16)])
        return {b't': b'\t', b'n': b'\n', b'\\': b'\\'}[escape]
    return re.sub(rb'\\(x[0-9a-fA-F]{2}|.)', replace, text, flags=re.DOTALL)


def escape_csv(field):
    return b'"' + field.replace(b'"', b'""') + b'"'


def text_of_key(kind, key):
    """How the key kind writes a key: what get and batch take, and what an input file holds."""
    if kind == 'hex':
        return key.hex().encode()
    if kind == 'uuid':
        digits = key.hex()
        return '-'.join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]).encode()
    if kind == 'u64':
        return str(int.from_bytes(key, 'big')).encode()
    return escape_tsv(key) if kind == 'raw' else key


KEY_KINDS = ('raw', 'text', 'hex', 'uuid', 'u64')
KEY_WIDTHS = {'uuid': 16, 'u64': 8}

_LETTERS = 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-äßçøЖ中🔑'


def random_key(rng, kind, one_length, plain=False):
    """A key: of one length that fits any layout, or of any length. Plain: no blank, line end or quote in it."""
    width = KEY_WIDTHS.get(kind) or (16 if one_length else rng.choice((1, 2, 7, 20, 31, 32, 90, 700)))
    if kind == 'u64':
        return rng.choice((rng.randrange(1 << 64), rng.randrange(1000))).to_bytes(8, 'big')
    if kind != 'text':
        key = rng.randbytes(width)
        return bytes(33 + byte % 200 for byte in key) if plain and kind == 'raw' else key
    letters = _LETTERS if plain else _LETTERS + ' "\\\t\n\x01,'
    key = ''
    while len(key.encode()) < width:
        letter = rng.choice(letters)
        if len((key + letter).encode()) <= width:
            key += letter
    return key.encode()


def random_value(rng, values, plain=False):
    """A value: nothing, 8 bytes, or any number of them. Plain: one line, and no blank at its start."""
    if values == 'none':
        return b''
    length = 8 if values == 'fixed' else rng.choice((0, 1, 3, 20, 100, 300))
    value = rng.randbytes(length)
    return bytes(33 + byte % 200 for byte in value) if plain else value


def random_keys(rng, count, kind, one_length, plain=False):
    """`count` distinct keys, in random order."""
    keys = {}
    while len(keys) < count:
        key = random_key(rng, kind, one_length, plain)
        if len(key) == 1 and len(keys) > count // 4:
            continue  # there are but few of them
        keys[key] = None
    return list(keys)


def distinct_numbers(rng, count, bits):
    """Doc ids, some at both ends of what they may be."""
    numbers = {0, (1 << bits) - 3}
    while len(numbers) < count:
        numbers.add(rng.choice((rng.randrange((1 << bits) - 2), rng.randrange(count * 4))))
    numbers = list(numbers)[:count]
    rng.shuffle(numbers)
    return numbers


def parse_batch(output):
    """Lines of `batch` or `get`: (key as typed, status, doc id, value)."""
    rows = []
    for line in output.split(b'\n')[:-1]:
        key, status, doc_id, value = line.split(b'\t')
        rows.append((unescape_tsv(key), status.decode(), int(doc_id) if doc_id else None,
                     unescape_tsv(value)))
    return rows


def parse_json_lines(output):
    return [json.loads(line) for line in output.splitlines()]
