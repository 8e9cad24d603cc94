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
    return done();
}
