# shellcheck shell=bash
# Copies the index and the objects of the task's repository to $STORE and prints `<id of the tree> <root of the work tree>`.
of() { git -C "$1" -c safe.directory='*' rev-parse "$2" "${@:3}"; }
if ! top=$(of . --show-toplevel 2>/dev/null); then
    set -- */.git
    [ $# -eq 1 ] && top=$(of "${1%/.git}" --show-toplevel 2>/dev/null) || exit 40
fi
set -e
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
rm -r "$STORE/objects"
cp -al "$objects" "$STORE/objects" 2>/dev/null || cp -a "$objects" "$STORE/objects"
mkdir -p "$STORE/info"
if [ -f "$index" ]; then cp -p "$index" "$STORE/index"; fi  # -p: by the index's time git knows which entries it must compare again
if [ -f "$exclude" ]; then cp "$exclude" "$STORE/info/exclude"; fi
tree=$(record)
echo "$tree $top"
