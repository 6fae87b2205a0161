#include "team.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace dw {

static inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spin until done() for a while, then let others run in between: cores may be fewer than threads.
template <class F> static void spin(F done) {
  for (int turns = 0; !done(); turns++) {
    if (turns < 500) relax();
    else std::this_thread::yield();
  }
}

struct Shared {
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> phase{0};
  alignas(64) std::atomic<int64_t> next{0};
};

void Crew::barrier() {
  if (threads == 1) {
    shared->next.store(0, std::memory_order_relaxed);
    return;
  }
  int now = shared->phase.load(std::memory_order_acquire);
  if (shared->arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
    shared->arrived.store(0, std::memory_order_relaxed);
    shared->next.store(0, std::memory_order_relaxed);
    shared->phase.store(now + 1, std::memory_order_release);
  } else {
    spin([&] { return shared->phase.load(std::memory_order_acquire) != now; });
  }
}

int64_t Crew::claim(int64_t count, int64_t step) {
  int64_t first = shared->next.fetch_add(step, std::memory_order_relaxed);
  return first < count ? first : -1;
}

class Team {
 public:
  explicit Team(int threads) : threads(threads) {
    for (int i = 1; i < threads; i++) helpers.emplace_back([this, i] { serve(i); });
  }

  ~Team() {
    work = nullptr;
    start();
    for (auto& helper : helpers) helper.join();
  }

  void run(void (*what)(Crew&, void*), void* with) {
    work = what;
    context = with;
    busy.store(threads - 1, std::memory_order_relaxed);
    shared.next.store(0, std::memory_order_relaxed);
    start();
    take(0);
    spin([&] { return busy.load(std::memory_order_acquire) == 0; });
  }

  const int threads;

 private:
  void start() {
    bool asleep;
    {
      std::lock_guard<std::mutex> lock(mutex);
      job.fetch_add(1, std::memory_order_release);
      asleep = sleeping > 0;
    }
    if (asleep) woken.notify_all();
  }

  void take(int me) {
    Crew crew;
    crew.me = me;
    crew.threads = threads;
    crew.shared = &shared;
    work(crew, context);
  }

  void serve(int me) {
    for (int seen = 0;;) {
      for (int turns = 0; turns < 10000 && job.load(std::memory_order_acquire) == seen; turns++)
        if (turns % 100) relax();
        else std::this_thread::yield();
      if (job.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex);
        sleeping++;
        woken.wait(lock, [&] { return job.load(std::memory_order_acquire) != seen; });
        sleeping--;
      }
      seen++;
      if (!work) return;
      take(me);
      busy.fetch_sub(1, std::memory_order_release);
    }
  }

  Shared shared;
  std::atomic<int> job{0}, busy{0};
  void (*work)(Crew&, void*) = nullptr;
  void* context = nullptr;
  std::mutex mutex;
  std::condition_variable woken;
  int sleeping = 0;
  std::vector<std::thread> helpers;
};

// Teams that nobody uses now. They are never destroyed at exit: their threads may be inside the C library by then.
struct Idle {
  std::mutex mutex;
  std::vector<std::unique_ptr<Team>> teams;
};

static std::atomic<Idle*> idle{nullptr};

static Idle& idles() {
  Idle* found = idle.load();
  if (!found) {
    Idle* made = new Idle;
    if (idle.compare_exchange_strong(found, made)) {
      found = made;
#if defined(__linux__) || defined(__APPLE__)
      static bool told = false;
      if (!told) pthread_atfork(nullptr, nullptr, [] { idle.store(nullptr); });  // a child has none of the threads
      told = true;
#endif
    } else {
      delete made;
    }
  }
  return *found;
}

void together(int threads, void (*work)(Crew&, void*), void* context) {
  Idle& pool = idles();
  std::unique_ptr<Team> team;
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    for (auto& each : pool.teams)
      if (each && each->threads == threads) {
        team = std::move(each);
        each = std::move(pool.teams.back());
        pool.teams.pop_back();
        break;
      }
  }
  if (!team) team = std::make_unique<Team>(threads);
  team->run(work, context);
  std::unique_ptr<Team> old;
  std::lock_guard<std::mutex> lock(pool.mutex);
  pool.teams.push_back(std::move(team));
  if (pool.teams.size() > 4) {  // of a number of threads that is asked for no more
    old = std::move(pool.teams.front());
    pool.teams.erase(pool.teams.begin());
  }
}

}  // namespace dw
