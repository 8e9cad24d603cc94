#include "base64.h"

#include <string.h>

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

long base64_decode(const char *text, unsigned char *to, size_t room)
{
    size_t length = strlen(text), count = 0;
    unsigned bits = 0;
    for (size_t i = 0; i < length; i++) {
        const char *found = strchr(ALPHABET, text[i]);
        if (found == NULL)
            return -1;
        bits = bits << 6 | (unsigned)(found - ALPHABET);
        if (i % 4 != 0 && count < room)
            to[count++] = (unsigned char)(bits >> (6 - 2 * (i % 4)));
    }
    return (long)count;
}
