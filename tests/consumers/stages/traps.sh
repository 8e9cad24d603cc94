# shellcheck shell=bash
# Sets everything that git lets a repository or a user start to a program that leaves a mark; then changes a.txt and nested/x.
cat >"$HOME/evil" <<END
#!/bin/sh
echo "\$0 \$*" >>"$HOME/mark"
cat
END
chmod +x "$HOME/evil"
cat >"$HOME/.gitconfig" <<END
[core]
    fsmonitor = $HOME/evil
    hooksPath = $HOME/hooks
    attributesFile = $HOME/attributes
    pager = $HOME/evil
    sshCommand = $HOME/evil
[diff]
    external = $HOME/evil
[diff "evil"]
    command = $HOME/evil
    textconv = $HOME/evil
[filter "evil"]
    clean = $HOME/evil
    smudge = $HOME/evil
    process = $HOME/evil
END
mkdir -p "$HOME/hooks" "$HOME/.config/git"
for hook in post-index-change pre-commit reference-transaction; do cp "$HOME/evil" "$HOME/hooks/$hook"; done
echo '* filter=evil diff=evil' >"$HOME/attributes"
for git in .git nested/.git "$HOME/.polar/patch"; do
    cat "$HOME/.gitconfig" >>"$git/config"
    mkdir -p "$git/hooks" "$git/info"
    cp "$HOME"/hooks/* "$git/hooks"
    cp "$HOME/attributes" "$git/info/attributes"
done
mkdir "$HOME/common" && cp "$HOME/.gitconfig" "$HOME/common/config" && echo ../../common >"$HOME/.polar/patch/commondir"
cp "$HOME/attributes" .gitattributes
sed -i s/two/2/ a.txt
echo more >>nested/x
