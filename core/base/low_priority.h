// A thread that lets others go first.
#pragma once

namespace latchkey {

// Gives the calling thread, and those that it starts, the least share of a processor, and short
// turns: who wakes up need not wait until a turn of the usual milliseconds is over, as the
// scheduler otherwise has it even for such a thread (Linux 6.6; the length of turns can be chosen
// from 6.12 on). Without a right to it, it can't be taken back.
void LowerPriority();

}  // namespace latchkey
