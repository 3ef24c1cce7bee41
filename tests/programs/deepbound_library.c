/* What `deepbound` loads: blocks from its own malloc, from libc's, and the end of somebody else's; a vector write. */
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

void *library_gives(size_t len)
{
	return malloc(len);
}

/* The block is of the malloc that libc's own functions use. */
char *library_copies(const char *text)
{
	return strdup(text);
}

void *library_grows(void *block, size_t len)
{
	return realloc(block, len);
}

void library_frees(void *block)
{
	free(block);
}

ssize_t library_writes(int fd, void *bytes, size_t len)
{
	const struct iovec iov = {bytes, len};
	return writev(fd, &iov, 1);
}
