#ifndef RING_H
#define RING_H

#include <stddef.h>

#define RING_SIZE 8

struct ring {
    unsigned char data[RING_SIZE];
    size_t head; /* the next byte is read here */
    size_t used;
};

/* Both return how many bytes they moved. */
size_t ring_write(struct ring *ring, const unsigned char *from, size_t count);
size_t ring_read(struct ring *ring, unsigned char *to, size_t count);

#endif
