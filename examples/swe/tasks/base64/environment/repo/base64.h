#ifndef BASE64_H
#define BASE64_H

#include <stddef.h>

/* Decodes text to at most `room` bytes and returns their number, or -1 for text that isn't base64. */
long base64_decode(const char *text, unsigned char *to, size_t room);

#endif
