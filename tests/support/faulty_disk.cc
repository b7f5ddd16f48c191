// A disk that fails when it is told to: a FUSE file system that shows a folder read-only.
//
//   faulty_disk FOLDER MOUNT_POINT CONTROL_FILE
//
// While CONTROL_FILE exists, its lines "BEGIN END NAME" say what can't be read: a read of NAME, a
// path within FOLDER, that touches one of the bytes [BEGIN, END) fails with EIO. Each open of a
// file drops what the kernel has of it in memory, so that its maps must read again. Runs until it
// is unmounted or gets SIGTERM. Says "mounted" on standard error once it serves.
#define FUSE_USE_VERSION 31

#include <dirent.h>
#include <fcntl.h>
#include <fuse.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

std::string folder, control_file;

std::string Real(const char* path) { return folder + path; }

bool Fails(const char* path, uint64_t begin, uint64_t end) {
  std::ifstream control(control_file);
  uint64_t bad_begin, bad_end;
  std::string name;
  while (control >> bad_begin >> bad_end && std::getline(control >> std::ws, name)) {
    if (path == "/" + name && begin < bad_end && bad_begin < end) return true;
  }
  return false;
}

void* Init(fuse_conn_info* /*connection*/, fuse_config* config) {
  config->kernel_cache = 0;  // an open drops the file's pages
  config->auto_cache = 0;
  std::fputs("mounted\n", stderr);
  return nullptr;
}

int GetAttributes(const char* path, struct stat* info, fuse_file_info* /*file*/) {
  return ::lstat(Real(path).c_str(), info) == 0 ? 0 : -errno;
}

int ReadFolder(const char* path, void* buffer, fuse_fill_dir_t fill, off_t /*offset*/,
               fuse_file_info* /*file*/, fuse_readdir_flags /*flags*/) {
  DIR* const dir = ::opendir(Real(path).c_str());
  if (dir == nullptr) return -errno;
  while (const dirent* entry = ::readdir(dir)) {
    if (fill(buffer, entry->d_name, nullptr, 0, static_cast<fuse_fill_dir_flags>(0)) != 0) break;
  }
  ::closedir(dir);
  return 0;
}

int Open(const char* path, fuse_file_info* file) {
  if ((file->flags & O_ACCMODE) != O_RDONLY) return -EROFS;
  const int fd = ::open(Real(path).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  file->fh = static_cast<uint64_t>(fd);
  file->keep_cache = 0;
  return 0;
}

// Never fewer bytes than there are: the kernel would take that for the file's end.
int Read(const char* path, char* buffer, size_t size_bytes, off_t offset, fuse_file_info* file) {
  const auto begin = static_cast<uint64_t>(offset);
  if (Fails(path, begin, begin + size_bytes)) return -EIO;
  size_t done = 0;
  while (done < size_bytes) {
    const ssize_t got = ::pread(static_cast<int>(file->fh), buffer + done, size_bytes - done,
                                offset + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -errno;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return static_cast<int>(done);
}

int Release(const char* /*path*/, fuse_file_info* file) {
  return ::close(static_cast<int>(file->fh)) == 0 ? 0 : -errno;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: faulty_disk FOLDER MOUNT_POINT CONTROL_FILE\n", stderr);
    return 2;
  }
  // Absolute, whatever folder libfuse works in.
  char* const absolute = ::realpath(argv[1], nullptr);
  if (absolute == nullptr) {
    std::perror(argv[1]);
    return 3;
  }
  folder = absolute;
  std::free(absolute);
  control_file = argv[3];

  fuse_operations operations = {};
  operations.init = Init;
  operations.getattr = GetAttributes;
  operations.readdir = ReadFolder;
  operations.open = Open;
  operations.read = Read;
  operations.release = Release;
  char foreground[] = "-f", option[] = "-o",
       options[] = "ro,default_permissions,fsname=faulty_disk,max_threads=10";
  char* arguments[] = {argv[0], foreground, option, options, argv[2], nullptr};
  return fuse_main(5, arguments, &operations, nullptr);
}
