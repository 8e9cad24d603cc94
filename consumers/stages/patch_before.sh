# shellcheck shell=bash
# Copies the index of the task's repository, and the objects of its work tree, to $STORE and prints `<id of the tree> <root of the work tree>`.
of() { git -C "$1" -c safe.directory='*' rev-parse "$2" "${@:3}"; }
if ! top=$(of . --show-toplevel 2>/dev/null); then
    set -- */.git
    [ $# -eq 1 ] && top=$(of "${1%/.git}" --show-toplevel 2>/dev/null) || exit 40
fi
set -e
trap 'rm -rf "$STORE"' ERR  # half a copy would only fill the session's disk
cd "$top"
objects=$(of . --git-path objects) index=$(of . --git-path index) exclude=$(of . --git-path info/exclude)
format=$(of . --show-object-format)
rm -rf "$STORE"
mkdir -p "$STORE"
export GIT_DIR=$STORE GIT_WORK_TREE=$top
git init --quiet --template= --object-format="$format"
cat >>"$STORE/config" <<'END'
[core]
    fsync = none
    looseCompression = 0
    hooksPath = /dev/null
    attributesFile = /dev/null
    excludesFile = /dev/null
    safecrlf = false
    quotePath = false
[advice]
    addEmbeddedRepo = false
END
mkdir -p "$STORE/info"
if [ -f "$index" ]; then cp -p "$index" "$STORE/index"; fi  # -p: by the index's time git knows which entries it must compare again
if [ -f "$exclude" ]; then cp "$exclude" "$STORE/info/task"; else : >"$STORE/info/task"; fi
realpath "$objects" >"$STORE/objects/info/alternates"
tree=$(record)
# The agent may remove the task's objects, and no hard link leads from a cell's workspace to its home: so those of the tree are copied.
echo "$tree" | git pack-objects --quiet --revs --window=0 --compression=0 "$STORE/objects/pack/pack" >/dev/null
rm "$STORE/objects/info/alternates"
echo "$tree $top"
