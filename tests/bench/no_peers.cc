// In place of peers/ where their libraries are not to be had.
#include <cstdio>
#include <cstdlib>

#include "tests/bench/suites.h"

namespace latchkey {

void RunPeersSuite(const SuiteOptions&, Report*) {
  std::fprintf(stderr,
               "bench: built without the peers; tests/bench/run --peers builds with them\n");
  std::exit(2);
}

}  // namespace latchkey
