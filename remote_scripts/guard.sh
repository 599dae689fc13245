#!/bin/sh
# sshop guard: runs one intended action at most once, and answers for it later. docs/PROTOCOL.md is its contract.
#
# One process reads the request, claims it by a marker, runs the command in a session of its own, records how it ended
# and answers. A lost channel must not stop it between claim and record: it ignores what a dying line sends, and a
# write into a dead channel does no harm. Its variables begin with an underscore, so that none of the login's own,
# which the command inherits, is touched. Nothing that arrived is ever evaluated.
set -u -f

# --- words on the wire and in the marker -------------------------------------------------------------------------

put() { # put TEXT: writes TEXT as it is; never a program, whose argv others could read
	case ${KSH_VERSION-} in
	*MIRBSD*) print -rn -- "$1" ;;
	*) printf '%s' "$1" ;;
	esac
}

say() { # say WORD...: one framed line of the answer; nobody may be there to read it
	put "${_lead}sshop1 $_nonce $*$_nl" 2>/dev/null
	_lead=
}

note() { # note WORD...: one line of the marker, over its padding
	put "$* ;$_nl" >&8
}

refuse() { # refuse CODE TEXT: the answer is no
	say no "$1 claim=$_claim op=$_op gen=$_gen rec=$_rec twin=$_twin msg=$2"
	say end
	leave
}

leave() { # takes the scaffolding away and ends; whoever waited has the answer by now
	if [ -n "$_litter" ]; then
		IFS=$_nl
		rm -f -- $_litter 2>/dev/null
	fi
	exit 0
}

litter() { # litter FILE: FILE is to be removed at the end
	_litter="$_litter${_litter:+$_nl}$1"
}

because() { # because FILE: the first line of a utility's complaint, as _why
	_why=
	[ ! -f "$1" ] || IFS= read -r _why <"$1"
	_why=${_why:-no reason given}
}

refuse_disk() { # refuse_disk FILE: the disk said no, as FILE, or a copy of the guard put there, complains
	because "$1"
	if [ "$_why" = 'no reason given' ]; then
		_why=$(cp -- "$0" "$_spool/$_own.try" 2>&1) || :
		litter "$_spool/$_own.try"
		_why=${_why%%"$_nl"*}
	fi
	case $_why in
	*'No space'* | *uota*) refuse no_space "$_why" ;;
	*'not permitted'* | *'not supported'* | *'not implemented'* | *'many links'*) refuse no_links "$_why" ;;
	*) refuse no_store "$_why" ;;
	esac
}

# --- what the machine knows --------------------------------------------------------------------------------------

stat_of() { # stat_of PID|self: _pid _stat _ppid _pgrp _sid _tty _start of that process; false where there is none
	_text=
	if [ -r /proc/self/stat ]; then
		[ -r "/proc/$1/stat" ] || return 1
		while IFS= read -r _line2; do _text=$_text$_line2; done 2>/dev/null <"/proc/$1/stat"
		[ -n "$_text" ] || return 1
		_pid=${_text%% *}
		set -- ${_text##*") "}
		_stat=$1 _ppid=$2 _pgrp=$3 _sid=$4 _tty=$5 _start=${20}
		return 0
	fi
	_pid=$1
	[ "$1" != self ] || _pid=$(exec sh -c 'echo "$PPID"')
	_text=$(ps -o stat= -o ppid= -o pgid= -o lstart= -p "$_pid" 2>/dev/null) || return 1
	set -- $_text
	[ $# -ge 8 ] || return 1
	_stat=$1 _ppid=$2 _pgrp=$3 _sid=$3 _tty=0 _start=$4_$5_$6_$7_$8
}

alive() { # alive PID:START: that very process is there, and no zombie
	case $1 in [0-9]*:?*) ;; *) return 1 ;; esac
	stat_of "${1%%:*}" && [ "$_start" = "${1#*:}" ] || return 1
	case $_stat in [ZXx]*) return 1 ;; esac
}

session_alive() { # session_alive PID:START: that process, or any member of the session it began, is there
	case $1 in [0-9]*:?*) ;; *) return 1 ;; esac
	_lead_pid=${1%%:*}
	! alive "$1" || return 0
	! stat_of "$_lead_pid" || [ "$_start" = "${1#*:}" ] || return 1
	if [ ! -r /proc/self/stat ]; then
		kill -0 "-$_lead_pid" 2>/dev/null
		return
	fi
	set +f
	set -- /proc/[0-9]*
	set -f
	for _proc; do
		stat_of "${_proc#/proc/}" && [ "$_sid" = "$_lead_pid" ] || continue
		case $_stat in [ZXx]*) ;; *) return 0 ;; esac
	done
	return 1
}

now() { # _up: seconds since boot; the clock on the wall decides nothing
	_up=0
	if [ -r /proc/uptime ]; then
		IFS=' ' read -r _up _rest </proc/uptime
	else
		_up=$(date +%s)
		case $_up in *[!0-9]*) _up=0 ;; esac
	fi
}

centis() { # centis UP: _cs, UP as a whole number of hundredths
	_cs=${1%.*}
	case $1 in *.*) _frac=${1#*.}00 ;; *) _frac=00 ;; esac
	_cs=$_cs${_frac%"${_frac#??}"}
	while :; do
		case $_cs in 0?*) _cs=${_cs#0} ;; *) return ;; esac
	done
}

know_machine() { # _machine _boot _sup: this machine, this boot and process namespace, this process
	_machine=
	[ ! -r /etc/machine-id ] || IFS= read -r _machine </etc/machine-id
	case $_machine in '' | uninitialized) _machine=$(uname -n) ;; esac
	_rest=$_machine _machine=m-
	while [ -n "$_rest" ]; do
		_tail=${_rest#?}
		_char=${_rest%"$_tail"}
		case $_char in [!A-Za-z0-9.-]) _char=_ ;; esac
		_machine=$_machine$_char _rest=$_tail
	done
	_boot=-
	if [ -r /proc/sys/kernel/random/boot_id ]; then
		IFS= read -r _boot </proc/sys/kernel/random/boot_id
		! stat_of 1 || _boot=$_boot.$_start
	else
		_boot=$(sysctl -n kern.boottime 2>/dev/null) || :
		set -- $_boot
		_boot=b$*
		IFS=_
		set -- $_boot
		_boot=$*
		IFS=' '
	fi
	stat_of $$ || _start=-
	_sup=$$:$_start _own=$_nonce.$$.$_start
	now
	_born=$_up
}

find_hasher() { # _hasher: how this host makes a SHA-256, or nothing
	_hasher=
	if command -v sha256sum >/dev/null; then
		_hasher=sha256sum
	elif command -v shasum >/dev/null; then
		_hasher='shasum -a 256'
	elif command -v openssl >/dev/null; then
		_hasher='openssl dgst -sha256 -r'
	elif command -v sha256 >/dev/null; then
		_hasher='sha256 -q'
	fi
	_digest=none
	[ -z "$_hasher" ] || _digest=sha256
}

find_setsid() { # _setsid: its path, since the command's own PATH may not lead there; or nothing
	_setsid=
	IFS=:
	for _folder in $PATH; do
		[ -n "$_setsid" ] || [ ! -x "$_folder/setsid" ] || _setsid=$_folder/setsid
	done
	IFS=' '
}

hash_of() { # hash_of FILE: _hash, its SHA-256, - where there is none
	_hash=-
	[ -n "$_hasher" ] || return 0
	$_hasher <"$1" >"$_spool/$_own.sum" 2>/dev/null || return 1
	IFS=' ' read -r _hash _rest <"$_spool/$_own.sum"
}

# --- predicates on what arrived ----------------------------------------------------------------------------------

is_id() { # is_id TEXT: an operation ID
	case $1 in '' | [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) return 1 ;; esac
	[ ${#1} -le 128 ]
}

is_name() { # is_name TEXT: the name of a variable
	case $1 in '' | [!A-Za-z_]* | *[!A-Za-z0-9_]*) return 1 ;; esac
}

is_number() { # is_number TEXT
	case $1 in '' | *[!0-9]* | 0?* | ?????????????*) return 1 ;; esac
}

is_minted() { # is_minted ID: an ID that carries its time
	case $1 in op_[0-7]*) ;; *) return 1 ;; esac
	case ${1#op_} in *[!0-9a-hjkmnp-tv-z]*) return 1 ;; esac
	[ ${#1} -eq 29 ]
}

is_overtaken() { # is_overtaken ID: minted, and its time is not newer than the horizon
	[ "$_horizon" != - ] && is_minted "$1" || return 1
	_mine=${1#op_} _theirs=${_horizon#op_}
	for _rest in 1 2 3 4 5 6 7 8 9 10; do
		_char=${_mine%"${_mine#?}"} _other=${_theirs%"${_theirs#?}"}
		_mine=${_mine#?} _theirs=${_theirs#?}
		[ "$_char" != "$_other" ] || continue
		_before=${_digits%%"$_char"*} _rest=${_digits%%"$_other"*}
		[ ${#_before} -lt ${#_rest} ]
		return
	done
	return 0
}

is_folder() { # is_folder PATH: a folder of the account, and no link
	[ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ]
}

# --- the marker --------------------------------------------------------------------------------------------------

read_marker() { # read_marker FILE: what its counting lines say, as _m variables; false where it is no marker
	_mid= _mgen= _mrec=- _matt=- _mfp=- _mboot=- _msup=- _mproc=- _muser= _mkilled=- _mstatus=- _mms=0 _msync=-
	_mout=- _mouts=- _merr=- _merrs=- _mbefore=- _mafter=- _mlimit=enforced _mseen=' ' _mlines=0
	[ -f "$1" ] && [ ! -L "$1" ] || return 1
	while IFS= read -r _line2 && [ -n "$_line2" ]; do
		_mlines=$((_mlines + 1))
		case $_line2 in *' ;') read_words ${_line2%;} ;; esac
	done 2>/dev/null <"$1"
	case $_mseen in ' sshop-marker claimed '* | ' sshop-marker fenced '*) ;; *) return 1 ;; esac
}

read_words() { # read_words WORD k=v...: one line of a marker
	_word=$1 _when=
	_mseen="$_mseen$1 "
	shift
	for _pair; do
		_value=${_pair#*=}
		case $_word.${_pair%%=*} in
		sshop-marker.id) _mid=$_value ;;
		sshop-marker.gen) _mgen=$_value ;;
		claimed.rec | fenced.rec) _mrec=$_value ;;
		claimed.att | fenced.att) _matt=$_value ;;
		claimed.fp) _mfp=$_value ;;
		claimed.boot | fenced.boot) _mboot=$_value ;;
		claimed.sup) _msup=$_value ;;
		claimed.sync) _msync=$_value ;;
		condition.when) _when=$_value ;;
		condition.status) case $_when in before) _mbefore=$_value ;; after) _mafter=$_value ;; esac ;;
		process.pid) _mproc=$_value ;;
		process.user) _muser=$_value ;;
		killed.by) _mkilled=$_value ;;
		exited.status) _mstatus=$_value ;;
		exited.ms) _mms=$_value ;;
		exited.limit) _mlimit=$_value ;;
		output.out) _mout=${_value%%:*} _mouts=${_value#*:} ;;
		output.err) _merr=${_value%%:*} _merrs=${_value#*:} ;;
		esac
	done
}

saw() { # saw WORD: the marker read last has such a line
	case $_mseen in *" $1 "*) ;; *) return 1 ;; esac
}

is_there() { # is_there PATH: a name of any kind, a dangling link too
	[ -e "$1" ] || [ -L "$1" ]
}

is_settled() { # nothing more is to come after its exited line
	saw exited && saw output || return 1
	[ "$_mbefore" = - ] || [ "$_mafter" != - ] || [ "$_mstatus" = - ]
}

is_at_work() { # its supervisor, or until the exit is recorded anything that it started, lives
	[ "$_mboot" = "$_boot" ] || return 1
	alive "$_msup" || { ! saw exited && session_alive "$_mproc"; }
}

judge() { # judge ID N: _op, the state of that marker: read it, look at the processes, read it again
	while :; do
		_op=unreadable
		read_marker "$_base/markers/$1+$2" && [ "$_mid" = "$1" ] && [ "$_mgen" = "$2" ] || return 0
		for _op in fenced expired; do ! saw "$_op" || return 0; done
		_op=never_started
		! saw stopped || return 0
		_op=exited
		! is_settled || return 0
		_op=running
		! is_at_work || return 0
		_seen=$_mseen
		read_marker "$_base/markers/$1+$2" && [ "$_seen" = "$_mseen" ] || continue
		_op=interrupted
		if saw exited; then
			_op=exited
		elif [ "$_mboot" = "$_boot" ] && ! saw started; then
			_op=never_started
		fi
		return 0
	done
}

survey() { # survey ID: _gen _op _rec _att of its newest marker, and all of it as _m variables
	_gen=0 _op=absent _rec=- _att=- _mseen=' ' _mfp=-
	while is_there "$_base/markers/$1+$((_gen + 1))"; do _gen=$((_gen + 1)); done
	if [ "$_gen" = 0 ]; then
		! is_overtaken "$1" || _op=expired
		return 0
	fi
	judge "$1" "$_gen"
	_rec=$_mrec _att=$_matt
}

read_horizon() { # _horizon: the newest minted ID that was collected here
	_horizon=-
	[ -f "$_base/horizon" ] || return 0
	IFS=' ' read -r _horizon _rest <"$_base/horizon"
	is_minted "$_horizon" || _horizon=-
}

# --- the index of fingerprints -----------------------------------------------------------------------------------

look_twin() { # look_twin [tidy]: _entry none, own or other under _fp; a stale one is no entry, and tidied away
	_twin=- _twinop=- _entry=none
	while [ "$_fp" != - ] && is_there "$_base/index/$_fp"; do
		read_marker "$_base/index/$_fp" || :
		_other=$_mid
		if [ "$_other" = "$_id" ]; then
			_entry=own
			return
		fi
		if [ -n "$_other" ]; then
			survey "$_other"
			case $_op in
			absent | fenced | unreadable) _entry=other ;;
			expired) ;;
			*) [ "$_mfp" != "$_fp" ] || _entry=other ;;
			esac
			! saw acked || _entry=none
			if [ "$_entry" = other ]; then
				_twin=$_other _twinop=$_op
				return
			fi
		fi
		[ $# -gt 0 ] || return 0
		drop_entry "$_other" || refuse bad_store "an index entry cannot be taken away"
	done
}

drop_entry() { # drop_entry ID: takes the entry under _fp away by a name of its own; another operation's goes back
	mv -- "$_base/index/$_fp" "$_spool/$_own.entry" 2>/dev/null || ! is_there "$_base/index/$_fp" || return 1
	is_there "$_spool/$_own.entry" || return 0
	read_marker "$_spool/$_own.entry" || :
	[ "$_mid" = "$1" ] || ln -- "$_spool/$_own.entry" "$_base/index/$_fp" 2>/dev/null || :
	rm -f -- "$_spool/$_own.entry" 2>/dev/null || :
}

# --- the store ---------------------------------------------------------------------------------------------------

need() { # need UTILITY...: refuses where one is missing, before anything stands
	for _tool; do
		command -v "$_tool" >/dev/null || refuse no_tool "$_tool is missing on the host"
	done
}

open_spool() { # the folders that an acting verb needs; _fault says what is wrong with them
	if ! is_there "$_spool" || ! is_there "$_base/outputs"; then
		if ! command -v mkdir >/dev/null; then
			_fault='no_tool mkdir is missing on the host'
			return
		fi
		_why=$(mkdir -p -- "$_base/markers" "$_base/index" "$_base/outputs" "$_spool" 2>&1) || {
			_fault="no_store ${_why%%"$_nl"*}"
			case $_why in *'No space'* | *uota*) _fault="no_space ${_why%%"$_nl"*}" ;; esac
			return
		}
		_made=1
	fi
	for _folder in "$_root" "$_base" "$_base/markers" "$_base/index" "$_base/outputs" "$_spool"; do
		if ! is_folder "$_folder"; then
			_fault="bad_store $_folder is a link, or not a folder of this account"
			return
		fi
	done
	[ -w "$_spool" ] || _fault="no_store $_spool cannot be written"
	_err=$_spool/$_own.err
	litter "$_err"
	exec 7>/dev/null
}

read_store() { # _store and _format; false where there is no store
	_store=- _format=1
	[ -f "$_base/store" ] && [ ! -L "$_base/store" ] || return 1
	IFS=' ' read -r _word _value _store _rest <"$_base/store" || :
	[ "$_word" = sshop-store ] && [ "$_rest" = ';' ] || _value=0
	_format=$_value
}

make_store() { # gives the store its identity: synced under one name before it stands under the other
	! read_store || return 0
	need ln
	put "sshop-store 1 st_$_nonce ;$_nl" 2>/dev/null >"$_spool/$_own.store" || refuse_disk "$_err"
	litter "$_spool/$_own.store"
	is_there "$_base/store.made" || ln -- "$_spool/$_own.store" "$_base/store.made" 2>"$_err" || :
	[ -f "$_base/store.made" ] || refuse_disk "$_err"
	sync_files "$_base/store.made" "$_base" "$_root" "${_root%/*}/" || refuse_disk "$_err"
	is_there "$_base/store" || ln -- "$_base/store.made" "$_base/store" 2>"$_err" || :
	sync_files "$_base" || refuse_disk "$_err"
	read_store || refuse_disk "$_err"
}

sync_files() { # sync_files FILE...: makes them durable, as far as the host can: _grade; false where the disk fails
	if [ "$_grade" = file_synced ]; then
		if sync "$@" 2>"$_err"; then
			[ ! -s "$_err" ] || _grade=all_synced
			return 0
		fi
		because "$_err"
		case $_why in *'Input/output'* | *'No space'* | *uota*) return 1 ;; esac
		_grade=all_synced
	fi
	[ "$_grade" = unsynced ] || sync 2>/dev/null || _grade=unsynced
}

# --- the command -------------------------------------------------------------------------------------------------

restore() { # gives the command what the login gave
	trap - HUP INT QUIT PIPE TERM
	umask "$_umask"
	PATH=$_path
	if [ -n "$_locale" ]; then LC_ALL=${_locale#=}; else unset LC_ALL; fi
}

become() { # become CLASS ITEM...: this process becomes the command of that class
	_class=$1 _left=$(($# - 1))
	shift
	_first=1
	while [ "$_left" -gt 0 ]; do
		case $1 in
		e*) set -- "$@" "${1#e}" ;;
		"$_class"*)
			[ -z "$_first" ] || set -- "$@" --
			_first=
			set -- "$@" "${1#?}"
			;;
		esac
		shift
		_left=$((_left - 1))
	done
	stat_of self
	[ -z "$_limit" ] || put "$_pid:$_start$_nl" >"$_spool/$_own.pid"
	if [ "$_class" = a ] && [ "$_rec" != - ]; then
		note "process pid=$_pid:$_start${_as:+ user=$_as}"
		stat_of self
		[ "$_ppid" = "$$" ] || exit 125
	fi
	restore
	exec 7>&- 8>&- 9>&-
	while [ "$1" != -- ]; do
		export "$1"
		shift
	done
	shift
	case $1 in -*) set -- -- "$@" ;; esac
	exec ${_setsid:+"$_setsid"} "$@"
}

signal() { # signal NAME PID:START: to the whole group
	kill "-$1" "-${2%%:*}" 2>/dev/null
}

watch() { # ends the command's group when its time is over
	trap '[ -z "$_nap" ] || kill -KILL "$_nap"; exit 0' USR1
	_nap=
	sleep "$_limit" &
	_nap=$!
	wait "$_nap"
	_nap=
	IFS= read -r _target <"$_spool/$_own.pid" && alive "$_target" || exit 0
	put late >"$_spool/$_own.late"
	now
	[ "$1" != a ] || [ "$_rec" = - ] || note "killed by=timeout up=$_up"
	signal TERM "$_target"
	for _rest in 1 2 3 4 5; do
		sleep 1
		kill -0 "-${_target%%:*}" 2>/dev/null || exit 0
	done
	signal KILL "$_target"
}

perform() { # perform CLASS OUT ERR ITEM...: runs the command of that class under the limit: _status, _late
	_class=$1 _to=$2 _to2=$3
	shift 3
	_late=
	if [ -n "$_limit" ]; then
		[ ! -e "$_spool/$_own.late" ] || rm -f -- "$_spool/$_own.late" "$_spool/$_own.pid"
		watch "$_class" </dev/null >/dev/null 2>&1 &
		_dog=$!
	fi
	(become "$_class" "$@") <&5 5<&- >>"$_to" 2>>"$_to2"
	_status=$?
	[ "$_status" -le 255 ] || _status=$((128 + _status % 128))
	if [ -n "$_limit" ]; then
		if [ -e "$_spool/$_own.late" ]; then
			_late=1
			wait "$_dog"
		else
			kill -USR1 "$_dog" 2>/dev/null
		fi
	fi
}

# --- answers -----------------------------------------------------------------------------------------------------

send() { # send STREAM FILE OFFSET COUNT: raw bytes of an output
	say data "stream=$1 offset=$3 bytes=$4"
	if [ "$3" = 0 ]; then
		head -c "$4" <"$2"
	else
		tail -c "+$(($3 + 1))" <"$2" | head -c "$4"
	fi 2>/dev/null
	_lead=$_nl
}

measure() { # measure BASE: _mout _mouts _merr _merrs of the outputs as they are now
	_mout=0 _merr=0 _mouts=$_nothing _merrs=$_nothing
	[ -n "$_hasher" ] || _mouts=- _merrs=-
	if [ -s "$1.out" ] || [ -s "$1.err" ]; then
		_text=$(wc -c <"$1.out" && wc -c <"$1.err") || :
		IFS=" $_nl"
		set -- "$1" $_text
		IFS=' '
		_mout=${2:-0} _merr=${3:-0}
		[ "$_mout" = 0 ] || hash_head "$1.out" "$_mout"
		[ "$_mout" = 0 ] || _mouts=$_hash
		[ "$_merr" = 0 ] || hash_head "$1.err" "$_merr"
		[ "$_merr" = 0 ] || _merrs=$_hash
	fi
}

hash_head() { # hash_head FILE COUNT: _hash of exactly the first COUNT bytes
	_hash=-
	[ -n "$_hasher" ] || return 0
	_hash=$(head -c "$2" <"$1" | $_hasher) || :
	_hash=${_hash%% *}
}

answer_result() { # answer_result OWN: the record of how it ended, from the _m variables, and its outputs
	_changed=-
	[ "$_mbefore" = - ] || _changed=1
	[ "$_mstatus" != - ] || _changed=0
	_text="gen=$_gen rec=$_rec att=$_matt own=$1 status=$_mstatus changed=$_changed killed=$_mkilled"
	_text="$_text before=$_mbefore after=$_mafter limit=$_mlimit ms=$_mms out=$_mout outsha=$_mouts"
	say result "$_text err=$_merr errsha=$_merrs sync=$_msync fp=$_mfp${_background:+ background=1}"
	for _stream in out err; do
		_count=$_mout
		[ "$_stream" = out ] || _count=$_merr
		[ "$_count" -le "$_inline" ] || _count=$_inline
		[ "$_count" -gt 0 ] && [ -f "$_outputs.$_stream" ] || continue
		send "$_stream" "$_outputs.$_stream" 0 "$_count"
	done
	say end
}

answer_stored() { # answers what the marker that was surveyed last says
	case $_op in
	exited)
		_outputs=$_base/outputs/$_rec
		saw output || measure "$_outputs"
		answer_result 0
		;;
	running) say end ;;
	*)
		say state "op=$_op gen=$_gen rec=$_rec att=$_att fp=$_mfp msg=${1-}"
		say end
		;;
	esac
}

attach() { # waits for the operation that runs here, as long as the request is patient
	say running "gen=$_gen rec=$_rec att=$_att"
	now
	centis "$_up"
	_since=$_cs _naps=0
	while [ "$_op" = running ]; do
		if [ -n "$_patience" ]; then
			now
			centis "$_up"
			[ $((_cs - _since)) -lt $((_patience * 100)) ] || return 0
		fi
		nap
		survey "$_id"
	done
}

nap() { # sleeps, longer the more often it did
	_naps=$((_naps + 1))
	if [ "$_naps" -gt 100 ] || ! sleep "0.0$((_naps > 20 ? 9 : 3))" 2>/dev/null; then
		sleep 1 || exit 1
	fi
}

greet() { # the first line
	read_horizon
	read_store || :
	case $_verb.$_cat in run.read_only) ;; run.* | fence.* | cancel.*) make_store ;; esac
	_witness=-
	for _word in $_witnesses; do
		[ "$_witness" != - ] || _witness=ok
		is_there "$_base/markers/$_word+1" || is_overtaken "$_word" || _witness=gone
	done
	look_twin
	_op=absent _gen=0 _rec=- _att=-
	[ "$_id" = - ] || survey "$_id"
	_text="hello store=$_store format=$_format machine=$_machine boot=$_boot grade=$_grade horizon=$_horizon"
	_text="$_text digest=$_digest up=$_born op=$_op gen=$_gen rec=$_rec att=$_att"
	say "$_text twin=$_twin twinop=$_twinop witness=$_witness user=${LOGNAME:-${USER:--}}"
}

check_promises() { # refuses where this is not the store, or not the past, that the runner knows
	[ "$_format" = 1 ] || refuse bad_format "the store is of format $_format"
	[ -z "$_promised" ] || [ "$_promised" = "$_store" ] || refuse store_changed "the store is $_store"
	[ "$_witness" != gone ] || refuse rolled_back 'a witness is gone'
	[ -n "$_seen_gen" ] || return 0
	read_marker "$_base/markers/$_id+$_seen_gen" || is_there "$_base/markers/$_id+$_seen_gen" ||
		refuse rolled_back "the claim of generation $_seen_gen is gone"
	[ "$_mrec" = - ] || [ "$_mrec" = "$_seen_rec" ] || refuse rolled_back "generation $_seen_gen is of $_mrec"
}

# --- verbs -------------------------------------------------------------------------------------------------------

write_record() { # write_record WORD...: the record of generation _next, whole and padded, for a link to give it out
	_mark=$_spool/$_own.mark$_next
	litter "$_mark"
	while [ ${#_padding} -lt 4096 ]; do _padding=$_padding$_padding; done
	put "$_padding" 2>/dev/null >"$_mark" || refuse_disk "$_err"
	exec 8<>"$_mark"
	note "sshop-marker 1 id=$_id gen=$_next" 2>/dev/null && note "$*" 2>/dev/null || refuse_disk "$_err"
	owns "$_mark" || refuse_disk "$_err"
}

owns() { # owns PATH: it is the record of this very process
	read_marker "$1" && [ "$_mrec" = "rec_$_nonce" ] && { saw fenced || [ "$_msup" = "$_sup" ]; }
}

claim() { # gives the record the marker's name; false where another has it
	_marker=$_base/markers/$_id+$_next
	is_there "$_marker" || ln -- "$_mark" "$_marker" 2>"$_err" || :
	if ! owns "$_marker"; then
		is_there "$_marker" || refuse_disk "$_err"
		return 1
	fi
	_gen=$_next _rec=rec_$_nonce _att=$_attempt _claim=$_rec
}

take_entry() { # takes the index entry of the fingerprint, unless the request means a second effect
	[ -z "$_again" ] || return 0
	while :; do
		look_twin tidy
		case $_entry in own) return ;; other) return 1 ;; esac
		ln -- "$_mark" "$_base/index/$_fp" 2>"$_err" || :
		is_there "$_base/index/$_fp" || { [ "$_claim" = - ] && refuse_disk "$_err"; }
	done
}

may_go_on() { # the generation after the newest may be claimed, by the state of that and the ground of the request
	_next=$((_gen + 1))
	[ "$_most" -ge "$_next" ] || return 1
	case $_op.$_ground in
	absent.* | never_started.* | interrupted.decision) ;;
	interrupted.converges) [ "$_cat" = convergent ] ;;
	exited.converges) [ "$_cat" = convergent ] && [ "$_mstatus" != 0 ] && [ "$_mstatus" != - ] ;;
	unreadable.decision)
		[ -f "$_base/markers/$_id+$_gen" ] && hash_of "$_base/markers/$_id+$_gen" && [ "$_hash" = "$_decided" ]
		;;
	*) false ;;
	esac
}

stop() { # stop BY CODE TEXT: the claim stands and will never start
	note "stopped by=$1"
	_op=never_started
	refuse "$2" "$3"
}

run() { # run ITEM...: claims, runs, records, answers
	while :; do
		survey "$_id"
		case $_op in
		absent | fenced | expired | unreadable) ;;
		*) [ "$_mfp" = "$_fp" ] || refuse key_conflict "the marker's fingerprint is $_mfp" ;;
		esac
		if ! may_go_on; then
			case $_op in
			expired | fenced | interrupted | unreadable) refuse "$_op" "generation $_gen is $_op" ;;
			running)
				attach
				[ "$_op" != running ] || break
				continue
				;;
			esac
			break
		fi
		if ! take_entry_first; then continue; fi
		if claim; then
			run_claimed "$@"
			return
		fi
	done
	answer_stored
}

take_entry_first() { # what must be good before the claim
	is_weak && refuse weak_grade "the host can do $_grade"
	enter
	_mark=
	write_record "claimed rec=rec_$_nonce att=$_attempt fp=$_fp boot=$_boot sup=$_sup up=$_born at=$_clock cat=$_cat" \
		"sync=$_grade ground=$_ground"
	if ! take_entry; then
		survey "$_id"
		refuse unresolved_twin "operation $_twin stands under this fingerprint"
	fi
}

is_weak() { # the grade is weaker than the policy accepts
	case $_weakest.$_grade in
	file_synced.all_synced | *_synced.unsynced) ;;
	*) return 1 ;;
	esac
}

enter() { # the working folder, while nothing stands
	[ -n "$_cwd" ] || _cwd=${HOME:-/}
	case $_cwd in /*) ;; *) _cwd=${HOME:-}/$_cwd ;; esac
	cd -- "$_cwd" 2>/dev/null || refuse no_cwd "$_cwd cannot be entered"
}

open_streams() { # open_streams BASE: the files of the outputs, and standard input, which loses its name
	_outputs=$1
	put '' 2>/dev/null >"$1.out" && put '' 2>/dev/null >"$1.err" || return 1
	exec 6</dev/null 5<"$_input"
	[ "$_input" = /dev/null ] || rm -f -- "$_input"
}

run_claimed() { # run_claimed ITEM...: everything between the claim and the end
	_mfp=$_fp _matt=$_attempt _mkilled=- _mstatus=- _mbefore=- _mafter=- _mlimit=enforced _mms=0
	sync_files "$_marker" "$_base/markers" "$_base/index" || stop disk no_store "$_why"
	_msync=$_grade
	! is_weak || stop grade weak_grade "the host can do $_grade"
	[ "$_grade" = "$_hoped" ] || note "synced as=$_grade"
	say claimed "gen=$_gen rec=$_rec sync=$_grade"
	read_horizon
	if is_overtaken "$_id"; then
		now
		note "expired up=$_up"
		_op=expired
		refuse expired "the horizon is $_horizon"
	fi
	if ! take_entry; then
		_gen=$_next _rec=$_claim
		stop "$_twin" unresolved_twin "operation $_twin stands under this fingerprint"
	fi
	_mfp=$_fp _mkilled=- _mstatus=- _mbefore=- _mafter=- _mlimit=enforced _mms=0 _matt=$_attempt _msync=$_grade
	open_streams "$_base/outputs/$_rec" || stop disk no_space 'the files of the outputs cannot be made'
	if [ -n "$_condition" ]; then
		perform c /dev/null /dev/null "$@"
		[ -z "$_late" ] && [ "$_status" -lt 126 ] || stop condition condition_failed "its status is $_status"
		_mbefore=$_status
		note "condition when=before status=$_status"
	fi
	_cancel=$_outputs.cancel
	! is_there "$_cancel" || stop cancel fenced 'it was cancelled'
	now
	if [ "$_mbefore" != 0 ]; then
		note "started up=$_up"
		say started "gen=$_gen rec=$_rec"
		centis "$_up"
		_since=$_cs
		perform a "$_outputs.out" "$_outputs.err" "$@"
		_mstatus=$_status
		now
		centis "$_up"
		_mms=$(((_cs - _since) * 10))
		[ -z "$_late" ] || _mkilled=timeout
		if is_there "$_cancel"; then
			_mkilled=cancel
			note "killed by=cancel up=$_up"
		fi
	fi
	note "exited status=$_mstatus up=$_up ms=$_mms"
	if [ -s "$_outputs.out" ] || [ -s "$_outputs.err" ] || [ -n "$_condition" ]; then sync_files "$_marker" || :; fi
	measure "$_outputs"
	note "output out=$_mout:$_mouts err=$_merr:$_merrs"
	if [ "$_mbefore" != - ] && [ "$_mstatus" != - ]; then
		perform c /dev/null /dev/null "$@"
		_mafter=$_status
		note "condition when=after status=$_status"
	fi
	set -- "$_marker"
	[ "$_mout" = 0 ] || set -- "$@" "$_outputs.out"
	[ "$_merr" = 0 ] || set -- "$@" "$_outputs.err"
	[ $# = 1 ] || set -- "$@" "$_base/outputs"
	sync_files "$@" || :
	answer_result 1
	[ "$_mout" != 0 ] || litter "$_outputs.out"
	[ "$_merr" != 0 ] || litter "$_outputs.err"
	if IFS= read -r _line && [ "$_line" = ack ]; then
		now
		note "acked up=$_up"
		drop_entry "$_id" || :
		say acked "rec=$_rec"
	fi
	leave
}

run_freely() { # run_freely ITEM...: a command that only reads: claims nothing and leaves nothing
	enter
	_gen=0 _rec=- _mfp=$_fp _matt=$_attempt _mkilled=- _mbefore=- _mafter=- _mlimit=enforced _msync=unsynced
	litter "$_spool/$_own.out"
	litter "$_spool/$_own.err"
	open_streams "$_spool/$_own" || refuse_disk "$_err"
	now
	centis "$_up"
	_since=$_cs
	say started "gen=0 rec=-"
	perform a "$_outputs.out" "$_outputs.err" "$@"
	_mstatus=$_status
	now
	centis "$_up"
	_mms=$(((_cs - _since) * 10))
	[ -z "$_late" ] || _mkilled=timeout
	measure "$_outputs"
	answer_result 1
	leave
}

fence() { # the generation that has not started never will
	while :; do
		survey "$_id"
		case $_op in
		absent | never_started | interrupted)
			_next=$((_gen + 1))
			write_record "fenced rec=rec_$_nonce att=$_attempt boot=$_boot up=$_born at=$_clock"
			claim || continue
			;;
		fenced) ;;
		running)
			attach
			answer_stored
			return
			;;
		*)
			answer_stored
			return
			;;
		esac
		sync_files "$_base/markers/$_id+$_gen" "$_base/markers" || refuse no_store "$_why"
		say fenced "gen=$_gen rec=$_rec"
		say end
		return
	done
}

inquire() { # what is known; it changes nothing
	survey "$_id"
	[ "$_op" != running ] || attach
	answer_stored
}

ack() { # the runner has the result in its ledger: the marker says so, and the entry goes
	survey "$_id"
	_count=$_gen
	while [ "$_count" -gt 0 ] && [ "$_mrec" != "$_result_of" ]; do
		_count=$((_count - 1))
		judge "$_id" "$_count"
	done
	[ "$_count" -gt 0 ] || refuse no_record "no marker of $_result_of"
	_rec=$_mrec
	[ "$_op" != running ] && [ "$_op" != unreadable ] || {
		answer_stored
		return
	}
	if ! saw acked; then
		exec 8<>"$_base/markers/$_id+$_count"
		while [ "$_mlines" -gt 0 ]; do
			IFS= read -r _line2 <&8
			_mlines=$((_mlines - 1))
		done
		now
		note "acked up=$_up"
	fi
	[ "$_fp" != - ] || _fp=$_mfp
	look_twin
	[ "$_entry" != own ] || drop_entry "$_id" || :
	say acked "rec=$_rec"
	say end
}

fetch() { # the bytes of an output
	survey "$_id"
	IFS=' ' read -r _stream _from _length <<-END
		$_range
	END
	_file=$_base/outputs/$_rec.$_stream
	[ -f "$_file" ] || [ "$_mout$_merr" != -- ] || refuse no_output "there is no $_stream of $_rec"
	_patient=${_patience:+1}
	now
	centis "$_up"
	_since=$_cs _naps=0
	while :; do
		survey "$_id"
		_size=0
		[ ! -f "$_file" ] || _size=$(wc -c <"$_file") || :
		_count=$((_size - _from))
		[ "$_length" = - ] || [ "$_count" -le "$_length" ] || _count=$_length
		[ "$_count" -le 0 ] || {
			send "$_stream" "$_file" "$_from" "$_count"
			_from=$((_from + _count))
			[ "$_length" = - ] || _length=$((_length - _count))
		}
		[ -n "$_patient" ] && [ "$_op" = running ] && [ "$_length" != 0 ] || break
		now
		centis "$_up"
		[ "$_patience" = - ] || [ $((_cs - _since)) -lt $((_patience * 100)) ] || break
		nap
	done
	say end
}

cancel() { # what has not started never will; what runs is ended
	while :; do
		survey "$_id"
		[ "$_op" = running ] || break
		is_there "$_base/outputs/$_rec.cancel" || put '' >"$_base/outputs/$_rec.cancel" || refuse_disk "$_err"
		if alive "$_mproc"; then
			signal TERM "$_mproc"
			say cancelling "gen=$_gen rec=$_rec"
			_target=$_mproc _patience=${_patience:-5}
			attach
			if [ "$_op" = running ] && alive "$_target"; then
				signal KILL "$_target"
				attach
			fi
			break
		fi
		sleep 1
	done
	case $_op in
	absent | never_started | fenced) fence ;;
	*) answer_stored ;;
	esac
}

# --- the request -------------------------------------------------------------------------------------------------

act() { # act ITEM...: the request arrived whole
	exec 7>&-
	case $_verb in
	run | probe)
		[ -n "$_has_argv" ] || refuse bad_request 'no command'
		own_fingerprint
		;;
	esac
	[ -z "$_fault" ] || refuse "${_fault%% *}" "${_fault#* }"
	case $_verb in
	run)
		check_promises
		if [ "$_cat" = read_only ]; then run_freely "$@"; else run "$@"; fi
		;;
	probe) run_freely "$@" ;;
	*)
		check_promises
		"$_verb"
		;;
	esac
	leave
}

own_fingerprint() { # what arrived must be what the runner says it sent
	[ -n "$_hasher" ] || return 0
	$_hasher <"$_spool/$_own.plain" >"$_spool/$_own.sum" 2>/dev/null || refuse no_tool "$_hasher fails"
	litter "$_spool/$_own.sum"
	IFS=' ' read -r _hash _rest <"$_spool/$_own.sum"
	[ "$_hash" = "$_fp" ] || refuse bad_fingerprint "what arrived is $_hash"
}

take_input() { # take_input BYTES: standard input, whole
	[ "$1" = "$_in_bytes" ] || refuse bad_request 'not the length that was promised'
	_input=$_spool/$_own.in
	litter "$_input"
	need head wc rm
	head -c "$1" 2>"$_err" >"$_input" || refuse_disk "$_err"
	_text=$(wc -c <"$_input") || :
	[ $((_text)) = "$1" ] || refuse bad_input "$((_text)) bytes arrived"
	if [ "$_in_hash" != secret ] && [ -n "$_hasher" ]; then
		hash_of "$_input"
		[ "$_hash" = "$_in_hash" ] || refuse bad_input "its digest is $_hash"
	fi
	say spooled "bytes=$1"
}

serve() { # reads one request, a line at a time, and acts when all of it is there
	IFS= read -r _line || return 0
	_lines=1
	_rest=${_line#* }
	_nonce=${_rest%% *} _verb=${_rest#* }
	case ${#_nonce}.$_nonce in 32.*[!0-9a-f]*) _line= ;; 32.*) ;; *) _line= ;; esac
	case $_line in "sshop1 $_nonce $_verb") ;; *) _nonce=- && refuse bad_request 'no request of this protocol' ;; esac
	know_machine
	_base=$_root/$_machine _spool=$_root/$_machine/spool
	exec 7>/dev/null
	case $_verb in
	run | probe)
		open_spool
		if [ -z "$_fault" ]; then
			litter "$_spool/$_own.plain"
			put '' 2>/dev/null >"$_spool/$_own.plain" || _fault="no_store $_spool cannot be written"
			[ -n "$_fault" ] || exec 7>"$_spool/$_own.plain"
		fi
		;;
	fence | cancel | ack) open_spool ;;
	hello | inquire | fetch) ;;
	*) refuse bad_request 'unknown verb' ;;
	esac
	while IFS= read -r _line; do
		_value=${_line#??}
		case $_line in
		[lh]' '* | i | [+.]*) ;;
		*) # what was begun is complete
			case $_kind in
			e) set -- "e$_item" "$@" ;;
			a | c) set -- "$@" "$_kind$_item" ;;
			d) _cwd=$_item ;;
			esac
			[ ${#_item} -le 131000 ] || refuse bad_request 'an element is too long'
			_kind= _item= _hidden=
			;;
		esac
		_plainly=
		case $_stage.$_line in
		?'.l '*) _item=$_item$_value _plainly=$_kind ;;
		?.i) _item=$_item$_id _plainly=$_kind ;;
		?'.h '*) _hidden=1 _plainly=$_kind ;;
		?.+*) _item=$_item$_nl${_line#+} _plainly=$_kind ;;
		?..*)
			case $_hidden in
			'') refuse bad_request 'a value that nothing asked for' ;;
			1) _item=$_item${_line#.} _hidden=2 ;;
			2) _item=$_item$_nl${_line#.} ;;
			esac
			;;
		1'.a '*) _kind=a _item=$_value _plainly=1 _has_argv=1 ;;
		1'.c '*) _kind=c _item=$_value _condition=1 ;;
		1'.d '*) _kind=d _item=$_value _plainly=1 ;;
		1'.e '*=*)
			is_name "${_value%%=*}" || refuse bad_request 'the name of a variable'
			_kind=e _item=$_value _plainly=1
			;;
		1'.s '*)
			is_name "$_value" || refuse bad_request 'the name of a variable'
			_secrets="$_secrets $_value" _plainly=1
			;;
		1'.u '*) _as=$_value _plainly=1 ;;
		1'.z '*' '*) _in_bytes=${_value%% *} _in_hash=${_value#* } _plainly=1 ;;
		1'.I '*) is_id "$_value" && _id=$_value || refuse bad_request 'not an operation ID' ;;
		1'.T '*) is_id "$_value" && _attempt=$_value || refuse bad_request 'not an attempt ID' ;;
		1'.F '*) case $_value in *[!0-9a-f]*) refuse bad_request F ;; *) _fp=$_value ;; esac ;;
		1'.D '*) case $_value in *[!0-9A-Za-z:.+-]*) ;; *) _clock=$_value ;; esac ;;
		1'.K '*)
			_cat=$_value
			case $_cat in read_only | convergent | append_only | destructive) ;; *) refuse bad_request K ;; esac
			;;
		1'.G '*' '*)
			_most=${_value%% *} _ground=${_value#* } _decided=${_value##* }
			_ground=${_ground%% *}
			is_number "$_most" || refuse bad_request G
			case $_ground in first | converges | decision) ;; *) refuse bad_request G ;; esac
			;;
		1'.C '*' '*)
			_seen_gen=${_value%% *} _seen_rec=${_value#* }
			is_number "$_seen_gen" || refuse bad_request C
			;;
		1'.S '*) _promised=$_value ;;
		1'.W '*) is_id "$_value" && _witnesses="$_witnesses $_value" || refuse bad_request W ;;
		1.N) _again=1 ;;
		1'.Y '*)
			_weakest=$_value
			case $_weakest in file_synced | all_synced | unsynced) ;; *) refuse bad_request Y ;; esac
			;;
		1'.L '*) is_number "$_value" && _limit=$_value || refuse bad_request L ;;
		1'.M '*) is_number "$_value" && _inline=$_value || refuse bad_request M ;;
		1'.P '*) is_number "$_value" && _patience=$_value || refuse bad_request P ;;
		1'.A '*) _result_of=$_value ;;
		1'.O '*' '*' '*) _range=$_value ;;
		1.'?')
			[ "$_verb" = hello ] || [ "$_id" != - ] || refuse bad_request 'no operation ID'
			[ -z "$_fault" ] || refuse "${_fault%% *}" "${_fault#* }"
			greet
			[ "$_verb" != hello ] || {
				say end
				return
			}
			_stage=2
			;;
		2'.x '*)
			case $_secrets in
			" $_value" | " $_value "*) _secrets=${_secrets#" $_value"} ;;
			*) refuse bad_request 'not the secret that was promised' ;;
			esac
			_kind=e _item=$_value= _hidden=1
			;;
		2'.b '*) take_input "$_value" && _in_bytes= ;;
		2.go*)
			[ "${_line#go }" = "$_lines" ] || refuse bad_request "$_lines lines arrived"
			[ -z "$_secrets$_in_bytes" ] || refuse bad_request 'what was promised did not come'
			set -- "eOPERATION_ID=$_id" "$@"
			act "$@"
			return
			;;
		*) refuse bad_request 'a line that this guard does not know' ;;
		esac
		case $_plainly in '' | c) ;; *) put "$_line$_nl" >&7 ;; esac
		_lines=$((_lines + 1))
	done
	leave
}

main() {
	for _shell in ${YASH_VERSION:+/bin/dash /usr/bin/dash /bin/bash /usr/bin/bash /bin/ksh /bin/mksh /bin/zsh}; do
		[ ! -x "$_shell" ] || exec "$_shell" "$0" "$@"
	done
	_umask=0022
	if [ -r /proc/self/status ]; then
		while IFS=' 	' read -r _line _umask; do [ "$_line" != Umask: ] || break; done </proc/self/status
	fi
	case $_umask in [0-7]*[!0-7]* | '') _umask=$(umask) ;; esac
	umask 077
	IFS=' '
	_nl='
'
	_path=${PATH-} _locale=${LC_ALL+=${LC_ALL-}}
	PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin${PATH:+:$PATH} LC_ALL=C
	export LC_ALL
	unset CDPATH
	_lead=$_nl _nonce=- _id=- _attempt=- _fp=- _clock=- _cat=- _most=0 _ground=- _decided=- _seen_gen= _seen_rec=
	_promised= _witnesses= _again= _weakest=unsynced _limit= _inline=0 _patience= _result_of= _range= _has_argv=
	_condition= _cwd= _as= _secrets= _in_bytes= _in_hash= _input=/dev/null _kind= _item= _hidden= _stage=1 _fault=
	_litter= _claim=- _op=absent _gen=0 _rec=- _twin=- _twinop=- _entry=none _background= _made= _horizon=-
	_padding=$_nl _digits=0123456789abcdefghjkmnpqrstvwxyz _store=- _format=1 _witness=- _err=/dev/null
	_nothing=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
	case $0 in /*/guard/?*) _root=${0%/guard/*} ;; *) refuse bad_request 'not started from a store' ;; esac
	find_hasher
	_grade=unsynced
	! command -v sync >/dev/null || _grade=file_synced
	_hoped=$_grade
	find_setsid
	trap '' HUP INT QUIT PIPE TERM
	serve "$@"
}

main "$@"
