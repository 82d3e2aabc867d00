/* Swaps PATH between a folder or file and a symlink to TARGET as fast as it can, for SECONDS. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

int main(int count, char **argument) {
  if (count != 4) return 2;
  const char *path = argument[1], *target = argument[2];
  char other[4096];
  snprintf(other, sizeof other, "%s.other", path);
  unlink(other);
  if (symlink(target, other) < 0) { perror("symlink"); return 1; }
  time_t end = time(0) + atoi(argument[3]);
  unsigned long swaps = 0;
  while (time(0) < end) {
    for (int i = 0; i < 1000; i++) {
      if (syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, other, RENAME_EXCHANGE) == 0) swaps++;
    }
  }
  printf("%lu\n", swaps);
  return swaps == 0;
}
