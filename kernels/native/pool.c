/* Threads that share out tasks. Each has a span of them, one behind the other in memory, so until it has done its own, what it
   asks memory for ahead is its own next task's. Then it claims what others have not come to, so a core that is busy with
   something else does less. (Of whole replies 1.00 to 1.03 times as fast as claiming all of them in turn, whose tasks had to be
   four times as large; 2 cores.) Who waits looks for a while, since the next matrix follows closely, and offers its core to
   whoever else wants it; then it sleeps. Waking up costs more than such a look: a 1b model at 4 bits, 156 matrices a token, went
   from 14.4 to 16.9 tokens/s with 300 instead of 30 microseconds (on another machine, a Xeon with AMX, 30 to 3000 are alike:
   docs/exactness.md).

   Where the offer is taken, who waits comes back when the other's turn is over, milliseconds later. Then it is not made for
   a while, and who waits soon sleeps: it is woken at once. Beside one and two busy processes on two cores, a 1b model's
   matrices at 4 bits kept 0.55 and 0.24 to 0.35 of their quiet speed by offers, and keep 0.66 and 0.5: their share. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "native.h"

#define MOST 256 /* workers */
#define LOOK_NS 300000
#define LOST_NS 100000      /* a core that was given away for so long is somebody else's, too: */
#define CROWDED_NS 50000000 /* for so long nobody looks for longer than */
#define BRIEF_NS 20000

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static atomic_long call; /* changes when there is work */
static atomic_int busy;  /* workers in the present call */
static struct {
  _Alignas(64) atomic_llong next;
  int64_t end;
} spans[MOST + 1]; /* of tasks, by worker */
static atomic_llong crowded; /* until when */
static int started, places, joined, spread; /* of the present call; written under `lock`, like what follows and spans */
static Task *task;
static void *argument;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Looks from `begun` on; whether to look again at `*at`, the time. */
static bool look(int64_t begun, int64_t *at) {
  for (int i = 0; i < 32; i++) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
  }
  if (*at < atomic_load(&crowded)) {
    *at = now();
    return *at - begun < BRIEF_NS;
  }
  int64_t before = now();
  sched_yield();
  *at = now();
  if (*at - before > LOST_NS) atomic_store(&crowded, *at + CROWDED_NS);
  return *at - begun < LOOK_NS;
}

/* Its own tasks one after the other, then what others have not come to. */
static void share(int worker) {
  for (int other = 0; other < spread; other++) {
    const int whose = (worker + other) % spread;
    for (int64_t i; (i = atomic_fetch_add(&spans[whose].next, 1)) < spans[whose].end;) task(argument, i, worker);
  }
}

static void *work_for_ever(void *unused) {
  long seen = 0;
  for (;;) {
    for (int64_t begun = now(), at = begun; atomic_load(&call) == seen && look(begun, &at);) continue;
    pthread_mutex_lock(&lock);
    while (atomic_load(&call) == seen) pthread_cond_wait(&work, &lock);
    seen = atomic_load(&call);
    int worker = joined < places ? ++joined : 0;
    if (worker) atomic_fetch_add(&busy, 1);
    pthread_mutex_unlock(&lock);
    if (!worker) continue;
    share(worker);
    pthread_mutex_lock(&lock);
    if (atomic_fetch_sub(&busy, 1) == 1) pthread_cond_signal(&done);
    pthread_mutex_unlock(&lock);
  }
  return unused;
}

static void in_child(void) { /* threads do not survive a fork */
  pthread_mutex_init(&turn, NULL);
  pthread_mutex_init(&lock, NULL);
  pthread_cond_init(&work, NULL);
  pthread_cond_init(&done, NULL);
  started = places = joined = 0;
  atomic_store(&busy, 0);
}

static int start(int workers) { /* how many there are then; `lock` is held */
  static bool registered;
  if (!registered) pthread_atfork(NULL, NULL, in_child), registered = true;
  while (started < workers && started < MOST) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work_for_ever, NULL)) break;
    pthread_detach(thread);
    started++;
  }
  return started < workers ? started : workers;
}

/* Runs task(argument, i, worker) for each i below `count`; worker < threads tells those at work apart. */
void run_tasks(Task *wanted, void *with, int64_t count, int threads) {
  if (threads < 2 || count < 2 || pthread_mutex_trylock(&turn)) { /* another call has the workers */
    for (int64_t i = 0; i < count; i++) wanted(with, i, 0);
    return;
  }
  pthread_mutex_lock(&lock);
  task = wanted, argument = with;
  joined = 0, places = start((threads < count ? threads : (int)count) - 1);
  spread = places + 1;
  for (int worker = 0; worker < spread; worker++) {
    atomic_store(&spans[worker].next, worker * count / spread);
    spans[worker].end = (worker + 1) * count / spread;
  }
  atomic_fetch_add(&call, 1);
  pthread_cond_broadcast(&work);
  pthread_mutex_unlock(&lock);
  share(0);
  for (int64_t begun = now(), at = begun; atomic_load(&busy) && look(begun, &at);) continue;
  pthread_mutex_lock(&lock);
  places = 0; /* who wakes only now finds nothing to do */
  while (atomic_load(&busy)) pthread_cond_wait(&done, &lock);
  pthread_mutex_unlock(&lock);
  pthread_mutex_unlock(&turn);
}
