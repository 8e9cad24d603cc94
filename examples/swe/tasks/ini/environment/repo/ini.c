#include "ini.h"

#include <string.h>

int ini_find(const char *text, const char *section, const char *key, char *to, size_t room)
{
    int inside = 0;
    size_t name = strlen(section), length = strlen(key);

    for (const char *line = text; *line != 0;) {
        size_t size = strcspn(line, "\n");
        if (line[0] == '[')
            inside = size == name + 2 && strncmp(line + 1, section, name) == 0;
        else if (inside && size > length && strncmp(line, key, length) == 0 && line[length] == '=') {
            size_t value = size - length - 1;
            if (value >= room)
                return -1;
            memcpy(to, line + length + 1, value);
            to[value] = 0;
            return (int)value;
        }
        line += size + (line[size] == '\n');
    }
    return -1;
}
