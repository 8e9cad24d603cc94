#include <string.h>

#include "base64.h"
#include "tap.h"

int main(void)
{
    unsigned char got[16] = {0};

    ok(base64_decode("c3dl", got, 16) == 3 && memcmp(got, "swe", 3) == 0, "three bytes");
    ok(base64_decode("", got, 16) == 0, "nothing");
    ok(base64_decode("c3d*", got, 16) == -1, "other characters are refused");
    ok(base64_decode("c3c=", got, 16) == 2 && memcmp(got, "sw", 2) == 0, "one sign of padding");
    ok(base64_decode("cw==", got, 16) == 1 && got[0] == 's', "two signs of padding");
    ok(base64_decode("c3c", got, 16) == -1, "padding that is missing is refused");
    ok(base64_decode("c=c=", got, 16) == -1 && base64_decode("====", got, 16) == -1, "padding elsewhere is refused");
    ok(base64_decode("cw==c3dl", got, 16) == -1, "padding before the end is refused");
    ok(base64_decode("c3dlc3dl", got, 4) == -1, "more bytes than there is room for are refused");
    return done();
}
