// A team of threads for one forward at a time: they spin between its phases and sleep between forwards.
#pragma once
#include <atomic>
#include <cstdint>

namespace dw {

// What a thread of a team knows while it works.
class Crew {
 public:
  int me = 0, threads = 1;
  // Wait for all; work that claim() shares out begins anew.
  void barrier();
  // The first of the next `step` items nobody has, below `count`; -1: none is left.
  int64_t claim(int64_t count, int64_t step);

 private:
  friend class Team;
  struct Shared* shared = nullptr;
};

// Run work(crew, context) on so many threads, the caller's among them; returns when all are done. Several callers may
// be inside at once; each has threads of its own. Works after fork.
void together(int threads, void (*work)(Crew&, void*), void* context);

template <class F> void together(int threads, F&& work) {
  together(threads, [](Crew& crew, void* f) { (*static_cast<F*>(f))(crew); }, &work);
}

}  // namespace dw
