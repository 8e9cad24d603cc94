#include "ring.h"

size_t ring_write(struct ring *ring, const unsigned char *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ring->data[(ring->head + ring->used++) % RING_SIZE] = from[i];
    return count;
}

size_t ring_read(struct ring *ring, unsigned char *to, size_t count)
{
    size_t moved = count < ring->used ? count : ring->used;
    for (size_t i = 0; i < moved; i++)
        to[i] = ring->data[(ring->head + i) % RING_SIZE];
    ring->head += moved;
    ring->used -= moved;
    return moved;
}
