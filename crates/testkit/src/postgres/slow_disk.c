// Loaded into a PostgreSQL before the C library, so that it finds this fdatasync first.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int fdatasync(int file)
{
	struct timespec delay = { DELAY_NS / 1000000000L, DELAY_NS % 1000000000L };
	int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");

	nanosleep(&delay, NULL);
	return real(file);
}
