#include <string.h>

#include "ring.h"
#include "tap.h"

int main(void)
{
    struct ring ring = {0};
    unsigned char got[16] = {0};

    ok(ring_write(&ring, (const unsigned char *)"abc", 3) == 3, "bytes are written");
    ok(ring_read(&ring, got, 16) == 3 && memcmp(got, "abc", 3) == 0, "bytes are read in order");
    ok(ring_read(&ring, got, 16) == 0, "an empty buffer has nothing");
    ok(ring_write(&ring, (const unsigned char *)"0123456789", 10) == RING_SIZE, "a full buffer takes no more");
    ok(ring_write(&ring, (const unsigned char *)"x", 1) == 0, "not even one byte");
    ok(ring_read(&ring, got, 3) == 3 && memcmp(got, "012", 3) == 0, "the first bytes are still there");
    ok(ring_write(&ring, (const unsigned char *)"AB", 2) == 2 && ring_read(&ring, got, 16) == 7
           && memcmp(got, "34567AB", 7) == 0,
       "bytes go around the end");
    ok(ring.head < RING_SIZE, "the head stays inside");
    ok(ring_peek(&ring) == -1, "an empty buffer has no next byte");
    ring_write(&ring, (const unsigned char *)"z", 1);
    ok(ring_peek(&ring) == 'z' && ring.used == 1, "a look takes nothing");
    return done();
}
