#ifndef INI_H
#define INI_H

#include <stddef.h>

/* Copies the value of `key` in `section` to `to`, which has room for `room` characters with the zero at the end.
 * Returns its length, or -1 if there is no such key or too little room. */
int ini_find(const char *text, const char *section, const char *key, char *to, size_t room);

#endif
