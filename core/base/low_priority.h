// A thread that lets others go first.
#pragma once

namespace latchkey {

// Gives the calling thread, and those that it starts, the least share of a processor, and short
// turns: who wakes up need not wait until a turn of the usual milliseconds is over, as the
// scheduler otherwise has it even for such a thread (Linux 6.6; the length of turns can be chosen
// from 6.12 on). Without a right to it, it can't be taken back.
void LowerPriority();
// Whether the calling thread itself has called LowerPriority.
bool IsLowPriority();

// On such a thread, to be called every 30 us or so; elsewhere does nothing. Lets those run that
// wait for its processor: what the scheduler gives them otherwise they get at the next tick, which
// may be 4 ms away. And after each millisecond of work rests for two, so that no more than a third
// of a processor is taken from those that are idle between requests.
//
// The 99th percentile of batches beside reload after reload of 10M keys, on two cores that serve
// 30% of what they can, against that without reloads: 2.3 to 3.6 with the priority alone, 1.6 to
// 2.9 with turns given up too, 1.4 to 2.0 with as much rest as work, and 1.1 to 1.8 with twice as
// much (medians of 3 to 7 rounds, three runs or more each).
void GiveWay();

}  // namespace latchkey
