// Takes pages out of memory, for tests of what happens when they are not there.
#pragma once

#include "core/io/file_system.h"

namespace latchkey::test {

// All pages of the file, which nobody else may have mapped. Fails the test on a file system that
// keeps them in memory whatever it is asked, as tmpfs does.
void MakeCold(const MappedFile& file);

}  // namespace latchkey::test
