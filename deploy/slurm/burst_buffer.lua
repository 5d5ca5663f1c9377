-- Brings a job's datasets to its nodes before it begins, and pins them. For /etc/slurm of the
-- controller, with BurstBufferType=burst_buffer/lua in slurm.conf. A job asks for it in its script:
--   #BB_LUA lodefs                      the datasets of its --lodefs
--   #BB_LUA lodefs=REPO@REV:DIR[,...]   the same without --lodefs
--
-- Its user, SlurmUser, must be able to use the controller's proxy (and be in the groups of all
-- rules of access, which are applied to the job's user as well), which has the same [serve] peers
-- as the nodes, and is one of them or has no peer_listen. Slurm 22.05 and newer.

local PROGRAM = os.getenv("LODEFS_PROGRAM") or "/usr/bin/lodefs"
local SUBMIT_TIMEOUT_S = 5 -- the controller does nothing else meanwhile
local ASKED_BYTES_MAX = 16384 -- as a job's comment has at most
local DIRECTIVES_MAX = 1000
local ERROR_BYTES_MAX = 1024

local function quoted(words)
  return "'" .. words:gsub("'", "'\\''") .. "'"
end

-- What a script asks for: nil nothing, "" what its job has, else datasets. Second: what is wrong.
-- A script is any user's: each search here takes time that is linear in its size.
local function asked_in(script)
  local file = io.open(script)
  if not file then
    return nil
  end
  local text = "\n" .. (file:read("*a") or "") -- Slurm limits it: max_script_size, 4 MiB
  file:close()
  local found, size_bytes, at = nil, 0, 1
  for _ = 1, DIRECTIVES_MAX do
    local first = text:find("\n#BB_LUA", at, true)
    if not first then
      return found and table.concat(found, ",")
    end
    at = text:find("\n", first + 1, true) or #text + 1
    local words = text:sub(first + 1, at - 1):match("^#BB_LUA%s+lodefs(.*)$")
    words = words and (words:match("^.*%S") or "") -- without the blanks at its end
    if words and (words == "" or words:sub(1, 1) == "=") then
      size_bytes = size_bytes + #words
      if size_bytes > ASKED_BYTES_MAX then
        return nil, "lodefs: error: too many datasets, or names too long, in a job's script"
      end
      found = found or {}
      found[#found + 1] = words ~= "" and words:sub(2) or nil
    end
  end
  return nil, "lodefs: error: a job's script has too many lines of #BB_LUA"
end

-- SUCCESS, or ERROR and the first line of what it says.
local function lodefs(words, timeout_s)
  local limit = timeout_s and "timeout -k 1 " .. timeout_s .. " " or ""
  local pipe = io.popen(limit .. PROGRAM .. " slurm " .. words .. " 2>&1 </dev/null; echo $?")
  local said = pipe and pipe:read("*a") or ""
  if pipe then
    pipe:close()
  end
  if said:match("(%d+)\n$", -5) == "0" then
    return slurm.SUCCESS, ""
  end
  local line = said:match("lodefs: error: [^\n]*")
  return slurm.ERROR, line and line:sub(1, ERROR_BYTES_MAX) or "lodefs: error: it does not answer"
end

-- Submission: what cannot be is refused. Older releases do not tell the user: datasets that
-- rules of access limit are then looked at when the job is staged in.
function slurm_bb_job_process(script, uid)
  local words, wrong = asked_in(script)
  if wrong then
    return slurm.ERROR, wrong
  end
  if not words or words == "" then
    return slurm.SUCCESS -- cli_filter.lua has looked at --lodefs
  end
  local number = tonumber(uid)
  local user = number and string.format("%.0f", number) or ""
  return lodefs("resolve --uid " .. quoted(user) .. " -- " .. quoted(words), SUBMIT_TIMEOUT_S)
end

-- The job waits; its nodes are not known.
function slurm_bb_data_in(job, script)
  local words, wrong = asked_in(script)
  if not words then
    return wrong and slurm.ERROR or slurm.SUCCESS, wrong or ""
  end
  return lodefs("stage " .. job .. " -- " .. quoted(words))
end

-- The job has its nodes, and begins when this is done.
function slurm_bb_pre_run(job, script)
  if not asked_in(script) then
    return slurm.SUCCESS, ""
  end
  return lodefs("warm " .. job)
end

-- The job is over, or was cancelled at any time before. What fails here would be tried for ever.
function slurm_bb_job_teardown(job, script)
  lodefs("release " .. job, 60)
  return slurm.SUCCESS, ""
end

function slurm_bb_pools()
  return slurm.SUCCESS
end

function slurm_bb_setup()
  return slurm.SUCCESS
end

function slurm_bb_test_data_in()
  return slurm.SUCCESS, ""
end

function slurm_bb_real_size()
  return slurm.SUCCESS, 0
end

function slurm_bb_paths()
  return slurm.SUCCESS
end

function slurm_bb_post_run()
  return slurm.SUCCESS
end

function slurm_bb_data_out()
  return slurm.SUCCESS
end

function slurm_bb_test_data_out()
  return slurm.SUCCESS, ""
end

function slurm_bb_get_status()
  return slurm.SUCCESS, "lodefs warm --jobs says what is fetched"
end
