#!/bin/bash
# A worker in bash, with jq and coreutils: one task at a time, JSON, no cell. jq rounds numbers of more than 17 digits.
set -u
[[ $BGRP_FD == 3 ]] || { echo "the socket is to be descriptor 3" >&2; exit 1; }
exec 6>&1 # the log: what a task prints, while its result is caught

say() { # TYPE BODY
    local length i header=
    length=$(printf %s "$2" | wc -c)
    for i in 0 8 16 24; do header+=$(printf '\\x%02x' $((length >> i & 255))); done
    { printf "$header"; printf "\\x$(printf %02x "$1")\\0\\0\\0"; printf %s "$2"; } | cat >&3
}

failed() { jq -cn --argjson n "$1" --arg c "$2" --arg m "$3" '[[$n,1,[$c,$m,"",-1]]]'; }

run() { # NUMBER NAME KIND, the args in $args
    local path
    case $2 in
        echo | noise)
            [[ $2 == noise ]] && printf '\377{[ no frame'
            if [[ $3 -ge 2 ]]; then
                path=$(mktemp "${TMPDIR:-/tmp}/bgrp-value-XXXXXX")
                mv "$(jq -r . <<<"$args")" "$path"
                jq -cn --argjson n "$1" --argjson k "$3" --arg p "$path" '[[$n,0,[$k,$p]]]'  >&5
            else
                printf '[[%s,0,[%s,%s]]]' "$1" "$3" "$args" >&5
            fi ;;
        fail) failed "$1" Error "$(jq -r . <<<"$args")" >&5 ;;
        *) failed "$1" unknown_task "$2: this worker knows echo, fail, noise" >&5 ;;
    esac
}

say 1 '{"versions":[1],"encodings":["json"],"sdk":"bash by hand"}'
while read -r a b c d type flags zero1 zero2 < <(head -c 8 <&3 | od -An -v -tu1 -w8); do
    length=$((a | b << 8 | c << 16 | d << 24))
    if ((length > 16777216 || flags || zero1 || zero2 || type < 1 || type > 13)); then
        echo "not a frame: length $length, type $type" >&2
        exit 1
    fi
    body=$(head -c "$length" <&3)
    case $type in
        2) say 3 '{"tasks":["echo","fail","noise"]}' ;;
        4)
            # One task a frame, since READY does not say batch.
            IFS=$'\t' read -r number name kind < <(jq -r '.[0][2][0] | [.[0], .[2] // "", .[5][0]] | @tsv' <<<"$body")
            args=$(jq -c '.[0][2][0][5][1]' <<<"$body")
            say 6 "[$number]"
            say 5 "$(run "$number" "$name" "$kind" 5>&1 >&6)" ;;
        12)
            say 13 '["drained"]'
            exit 0 ;;
    esac
done
