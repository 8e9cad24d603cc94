#include <string.h>

#include "base64.h"
#include "tap.h"

int main(void)
{
    unsigned char got[16] = {0};

    ok(base64_decode("c3dl", got, 16) == 3 && memcmp(got, "swe", 3) == 0, "three bytes");
    ok(base64_decode("", got, 16) == 0, "nothing");
    ok(base64_decode("c3d*", got, 16) == -1, "other characters are refused");
    return done();
}
