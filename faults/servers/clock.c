/* Preloaded into a server: its clock is ahead of the real one by as much as a file says, at each moment.

   Only the clock that can be set is changed; intervals are measured by another one. Nothing here waits, allocates or
   locks, since PostgreSQL asks for the time in signal handlers too. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const volatile int64_t *ahead; /* in nanoseconds */

__attribute__((constructor)) static void open_clock(void)
{
    const char *path = getenv("POSTBUS_FAULTS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(*ahead), PROT_READ, MAP_SHARED, file, 0);

    if (file >= 0)
        close(file);
    if (page != MAP_FAILED)
        ahead = page;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);

    if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t moment = now->tv_sec * SECOND + now->tv_nsec + *ahead;

        now->tv_sec = moment / SECOND;
        now->tv_nsec = moment % SECOND;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place)
{
    struct timespec exact;

    clock_gettime(CLOCK_REALTIME, &exact);
    if (place)
        *place = exact.tv_sec;
    return exact.tv_sec;
}
