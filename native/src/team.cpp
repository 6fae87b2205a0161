#include "team.h"

#include <condition_variable>
#include <exception>
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

struct Shared {
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> phase{0};
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int> sleeping{0};
  std::mutex mutex;
  std::condition_variable woken;

  // Wait until done(): spin for a while, then let others run in between, then sleep, since cores may be fewer than
  // threads, or busy with other programs. What done() reads is written before wake(), both sequentially consistent.
  template <class F> void wait(F done) {
    for (int turns = 1; turns <= 10000; turns++) {
      if (done()) return;
      if (turns % 100) relax();
      else std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex);
    sleeping.fetch_add(1);
    woken.wait(lock, done);
    sleeping.fetch_sub(1);
  }

  void wake() {
    if (!sleeping.load()) return;
    { std::lock_guard<std::mutex> lock(mutex); }
    woken.notify_all();
  }
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
    shared->phase.store(now + 1);
    shared->wake();
  } else {
    shared->wait([&] { return shared->phase.load() != now; });
  }
}

int64_t Crew::claim(int64_t count, int64_t step) {
  int64_t first = shared->next.fetch_add(step, std::memory_order_relaxed);
  return first < count ? first : -1;
}

class Team {
 public:
  // Where the system gives no more threads, the work is done by those that there are.
  explicit Team(int asked) : asked(asked) {
    helpers.reserve(asked);
    try {
      for (int i = 1; i < asked; i++) helpers.emplace_back([this, i] { serve(i); });
    } catch (const std::exception&) {
    }
    threads = static_cast<int>(helpers.size()) + 1;
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
    shared.wait([&] { return busy.load() == 0; });
  }

  const int asked;

 private:
  void start() {
    job.fetch_add(1);
    shared.wake();
  }

  void take(int me) {
    Crew crew;
    crew.me = me;
    crew.threads = threads;
    crew.shared = &shared;
    work(crew, context);
  }

  void serve(int me) {
    for (int seen = 0;; seen++) {
      shared.wait([&] { return job.load() != seen; });
      if (!work) return;
      take(me);
      if (busy.fetch_sub(1) == 1) shared.wake();
    }
  }

  Shared shared;
  std::atomic<int> job{0}, busy{0};
  void (*work)(Crew&, void*) = nullptr;
  void* context = nullptr;
  int threads = 1;
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
      if (each && each->asked == threads) {
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
