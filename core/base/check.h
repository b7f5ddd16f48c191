// CHECK for what only a bug can break. Nothing read from a disk or a wire is ever checked with it.
#pragma once

#include <cstdio>
#include <cstdlib>

#define LATCHKEY_CHECK(condition)                                                        \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (0)
