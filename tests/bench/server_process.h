// A server of its own process, for benchmarks of what its clients see.
#pragma once

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "client/lookup_client.h"

namespace latchkey {

// latchkeyd, beside this program, on a socket in `folder`.
class ServerProcess {
 public:
  ServerProcess(const std::string& data_dir, const std::string& folder,
                const std::vector<std::string>& flags = {})
      : address_(fmt::format("unix:{}/socket", folder)) {
    std::filesystem::create_directories(folder);
    const std::string program =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "latchkeyd").string();
    std::vector<std::string> arguments = {program,  "--data",      data_dir, "--listen",
                                          address_, "--log-level", "warning"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    child_ = ::fork();
    if (child_ == 0) {
      // It shall not outlive a benchmark that fails.
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      ::execv(program.c_str(), pointers.data());
      ::_exit(127);
    }
  }
  ~ServerProcess() {
    ::kill(child_, SIGTERM);
    ::waitpid(child_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& address() const { return address_; }
  // Until it serves the table; ends the benchmark when it does not come to that.
  void AwaitTable(const std::string& table) const {
    const LookupClient client(address_, 30);
    for (int tries = 0; !client.Describe(table).ok(); ++tries) {
      if (tries == 600) {
        std::fprintf(stderr, "bench: the server does not answer\n");
        std::exit(3);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

 private:
  const std::string address_;
  pid_t child_;
};

}  // namespace latchkey
