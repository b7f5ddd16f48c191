#include "tests/support/cold_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <thread>

#include "core/prefetch/page_cache.h"

namespace latchkey::test {

void MakeCold(const MappedFile& file) {
  void* const data = const_cast<uint8_t*>(file.data());
  for (int i = 0; i < 5000; ++i) {
    // Pages that are mapped stay, so they leave the map first; those under way come in first.
    ASSERT_EQ(::madvise(data, file.size_bytes(), MADV_DONTNEED), 0);
    ASSERT_EQ(::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED), 0);
    // Not by mincore, which overlooks pages that are on their way in.
    const auto residency = MeasureResidency(file, ChooseResidencyProbe(file), 0, file.size_bytes());
    ASSERT_TRUE(residency.has_value()) << "only the files' owner is told what is in memory";
    if (residency->resident == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  FAIL() << "the file system of " << testing::TempDir() << " does not drop pages from memory";
}

}  // namespace latchkey::test
