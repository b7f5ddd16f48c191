"""Commands that change a table, killed at random moments: it is left as it was, or as it was to be.

The model is a dict of every generation. After each kill the table opens, holds what the model says of
the generation before the command or of the one after it, and the next command goes on. The seed decides
the commands and the moments, but how far a command has come by then is not the seed's to say.
"""

import collections
import json
import re
import signal
import subprocess
import sys
import time
import unittest

import support
from support import LATCHKEY, OK

KEYS = 40_000
KILLS = 110  # of each table
KINDS = ('build', 'append', 'delete', 'merge', 'rollback', 'gc')


class Change:
    """A command that is to be run, and what it makes of the table."""

    def __init__(self, kind, arguments, after=None, removes=()):
        self.kind = kind
        self.arguments = [LATCHKEY, *arguments]
        self.after = after  # rows of the generation that it publishes; None if it publishes none
        self.removes = set(removes)  # generations


class KilledTestCase:
    """A table 't' under changes, of keys and values that a subclass makes."""

    FLAGS = ()

    def make_key(self, rng, number):
        raise NotImplementedError

    def make_value(self, rng):
        raise NotImplementedError

    def setUp(self):
        super().setUp()
        self.table = self.data / 't'
        self.where = ('--data', self.data, '--table', 't')
        self.keys = list({self.make_key(self.random, number) for number in range(KEYS)})
        self.keys.sort()  # a set's order is not the seed's
        self.values = [self.make_value(self.random) for _ in range(300)]
        self.inputs = 0
        # Of each generation that is there: what a dump's lines say, key -> doc id, tab, value.
        self.model = {}
        self.seconds = {}  # that a command took which was not killed, of each kind
        self.started, self.killed, self.published, self.left_over = (
            collections.Counter() for _ in range(4))

    # --- changes

    def input(self, lines):
        self.inputs += 1
        return self.file(f'input{self.inputs % 4}', b''.join(lines))

    def rows(self, count, before):
        """Random rows: an input of them, and what they make of `before`."""
        keys = self.random.sample(self.keys, count)
        values = self.random.choices(self.values, k=count)
        path = self.input(b'%s %s\n' % row for row in zip(keys, values))
        after = dict(before)
        after.update((key, b'%d\t%s' % (ordinal, value))
                     for ordinal, (key, value) in enumerate(zip(keys, values)))
        return path, after

    def change(self, kind):
        newest = max(self.model, default=0)
        before = self.model.get(newest, {})
        if kind == 'build':
            path, after = self.rows(self.random.randrange(KEYS // 2, KEYS), {})
            return Change(kind, ['build', *self.where, *self.FLAGS, path], after)
        if kind == 'append':
            path, after = self.rows(self.random.randrange(KEYS // 8, KEYS // 2), before)
            return Change(kind, ['build', *self.where, *self.FLAGS, '--append', path], after)
        if kind == 'delete':
            keys = self.random.sample(self.keys, self.random.randrange(KEYS // 8, KEYS // 3))
            path = self.input(key + b'\n' for key in keys)
            gone = set(keys)
            after = {key: row for key, row in before.items() if key not in gone}
            return Change(kind, ['delete', *self.where, path],
                          after if len(after) < len(before) else None)
        if kind == 'merge':
            policy = self.random.choice(('all', 'all', 'tiered'))
            # Whether there is something to merge is not for the model to know.
            return Change(kind, ['merge', *self.where, '--policy', policy], before)
        if kind == 'rollback':
            to = self.random.choice([number for number in self.model if number != newest])
            return Change(kind, ['rollback', *self.where, '--to', to], self.model[to])
        keep = self.random.choice((1, 2, 3, 4))
        return Change(kind, ['gc', *self.where, '--keep', keep], removes=sorted(self.model)[:-keep])

    def choose(self):
        if len(self.model) < 2:
            return self.random.choice(('build', 'append') if self.model else ('build',))
        # Files and segments must not become too many.
        if len(self.model) > 8:
            return 'gc'
        return self.random.choices(KINDS, (2, 6, 5, 5, 2, 3))[0]

    def finish(self, change):
        """Runs it to its end, which is a success."""
        start = time.monotonic()
        done = support.run(change.arguments)
        self.seconds[change.kind] = time.monotonic() - start
        self.assertEqual((done.code, done.err), (OK, ''), f'{change.kind} after a kill')
        self.settle(change, done=True)
        listed = json.loads(self.latchkey('generations', *self.where, '--json').out)['generations']
        self.assertEqual([generation['generation'] for generation in listed], sorted(self.model))
        self.check_files(change)

    def kill(self, change):
        """Kills it within the time that such a command took before, if it is not done by then."""
        self.started[change.kind] += 1
        delay = self.random.random() * self.seconds[change.kind]
        with subprocess.Popen([str(argument) for argument in change.arguments],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            time.sleep(delay)
            process.kill()
            complaint = process.stderr.read().decode()
            code = process.wait(support.TIMEOUT_S)
        self.assertIn(code, (OK, -signal.SIGKILL), complaint)
        self.assertEqual(complaint, '')
        killed = code == -signal.SIGKILL
        self.killed[change.kind] += killed
        self.left_over[change.kind] += killed and bool(self.leftovers())
        self.published[change.kind] += self.settle(change, done=not killed) and killed
        return killed

    # --- checks

    def settle(self, change, done):
        """Holds the table to the model, and takes over what the change did: whether it did something."""
        numbers = self.numbers()
        newest = max(self.model, default=0)
        added, gone = numbers - self.model.keys(), self.model.keys() - numbers
        self.assertLessEqual(added, {newest + 1} if change.after is not None else set())
        self.assertLessEqual(gone, change.removes)
        if done and change.kind != 'merge':
            self.assertEqual(added, {newest + 1} if change.after is not None else set())
            self.assertEqual(gone, change.removes)
        for number in gone:
            del self.model[number]
        for number in added:
            self.model[number] = change.after
        if self.model:
            self.check_generation(max(self.model))
        return bool(added or gone)

    def numbers(self):
        """The generations that have manifests; none where there is no table."""
        names = (path.name for path in self.table.glob('*.manifest'))
        return {int(re.fullmatch(r'g(\d+)\.manifest', name).group(1)) for name in names}

    def check_generation(self, number, *flags):
        out = self.latchkey('dump', *self.where, *flags).out
        lines = out.split(b'\n')[:-1]
        rows = dict(line.split(b'\t', 1) for line in lines)
        self.assertEqual(len(lines), len(rows), 'a key comes twice')
        self.assert_rows(rows, self.model[number], f'generation {number}')

    def leftovers(self):
        """Files that no published generation can name."""
        if not self.table.exists():
            return []
        newest = max(self.numbers(), default=0)
        names = [path.name for path in self.table.iterdir()]
        return [name for name in names if name.endswith('.tmp') or
                (name.endswith('.segment') and int(re.match(r'g(\d+)', name).group(1)) > newest)]

    def check_files(self, change):
        """After a writer that was not killed: nothing is left of those that were; after gc, nothing else."""
        self.assertEqual(self.leftovers(), [], f'left after {change.kind}')
        if change.kind != 'gc':
            return
        needed = {'lock'}
        for manifest in self.table.glob('*.manifest'):
            needed.add(manifest.name)
            text = manifest.read_text()
            content = json.loads(text[:text.rindex('checksum')])
            needed.update(segment['file'] for segment in content['segments'])
        self.assertEqual({path.name for path in self.table.iterdir()}, needed)

    # --- the test

    def run_until_killed_often(self):
        self.seconds['build'] = 0.1
        self.kill(self.change('build'))  # so that there may be no table yet
        # How long each takes that is not killed.
        for kind in ('build', 'append', 'append', 'delete', 'merge', 'rollback', 'gc', 'append'):
            self.finish(self.change(kind))
        while sum(self.killed.values()) < KILLS or min(self.killed[kind] for kind in KINDS) < 5:
            self.kill(self.change(self.choose()))
            if self.random.randrange(2) == 0:
                self.latchkey('verify', *self.where)
            if self.random.randrange(4) == 0:
                number = self.random.choice(sorted(self.model))
                self.check_generation(number, '--generation', number)
            # Some are killed one after the other, with what was left before them.
            if self.random.randrange(3) > 0:
                self.finish(self.change(self.choose()))
        self.finish(self.change('append'))
        self.finish(self.change('gc'))
        self.latchkey('verify', *self.where)
        print(f'\n{self.id()}: ' + '; '.join(
            f'{kind}: {self.killed[kind]} of {self.started[kind]} killed, {self.left_over[kind]} left '
            f'files, {self.published[kind]} had taken effect' for kind in KINDS),
              file=sys.stderr, flush=True)
        self.assertGreaterEqual(sum(self.killed.values()), KILLS)
        # They were in the midst of something: of reading mostly, which leaves nothing, but of writing too.
        self.assertGreaterEqual(sum(self.left_over.values()), KILLS // 25)


class TextKeysTest(KilledTestCase, support.TestCase):
    """Keys and values of any length; some inputs are so large that they are spilled."""

    FLAGS = ('--key-kind', 'text', '--value-column', 'rest', '--memory', 16)

    def make_key(self, rng, number):
        return b'%s%d' % (b'key/' * rng.choice((0, 1, 1, 5)), number)

    def make_value(self, rng):
        return bytes(rng.choices(b'abcdefghijklmnopqrstuvwxyz', k=rng.choice((1, 20, 100, 900))))

    def test_killed_at_random(self):
        self.run_until_killed_often()


class NumericKeysTest(KilledTestCase, support.TestCase):
    """Keys and values of one length, and no filter."""

    FLAGS = ('--key-kind', 'u64', '--value-column', 'rest', '--value-width', 8, '--filter-bits', 0)

    def make_key(self, rng, number):
        return b'%d' % (number if number % 4 == 0 else rng.randrange(1 << 64))

    def make_value(self, rng):
        return b'%08d' % rng.randrange(10**8)

    def test_killed_at_random(self):
        self.run_until_killed_often()


if __name__ == '__main__':
    unittest.main()
