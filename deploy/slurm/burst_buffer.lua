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

local function quoted(words)
  return "'" .. words:gsub("'", "'\\''") .. "'"
end

-- What a script asks for: nil nothing, "" what its job has, else datasets.
local function asked_in(script)
  local file = io.open(script)
  if not file then
    return nil
  end
  local found
  for line in file:lines() do
    local words = line:match("^#BB_LUA%s+lodefs%s*$") and "" or line:match("^#BB_LUA%s+lodefs=(.-)%s*$")
    if words then
      found = found and found ~= "" and found .. "," .. words or words
    end
  end
  file:close()
  return found
end

-- SUCCESS, or ERROR and the first line of what it says.
local function lodefs(words, timeout_s)
  local limit = timeout_s and "timeout -k 1 " .. timeout_s .. " " or ""
  local pipe = io.popen(limit .. PROGRAM .. " slurm " .. words .. " 2>&1 </dev/null; echo $?")
  local said = pipe and pipe:read("*a") or ""
  if pipe then
    pipe:close()
  end
  local text, code = said:match("^(.-)\n?(%d+)\n$")
  if code == "0" then
    return slurm.SUCCESS, ""
  end
  local line = text and text:match("lodefs: error: [^\n]*")
  return slurm.ERROR, line or "lodefs: error: it does not answer"
end

-- Submission: what cannot be is refused. Older releases do not tell the user: datasets that
-- rules of access limit are then looked at when the job is staged in.
function slurm_bb_job_process(script, uid)
  local words = asked_in(script)
  if not words or words == "" then
    return slurm.SUCCESS -- cli_filter.lua has looked at --lodefs
  end
  local number = tonumber(uid)
  local user = number and string.format("%.0f", number) or ""
  return lodefs("resolve --uid " .. quoted(user) .. " -- " .. quoted(words), SUBMIT_TIMEOUT_S)
end

-- The job waits; its nodes are not known.
function slurm_bb_data_in(job, script)
  local words = asked_in(script)
  if not words then
    return slurm.SUCCESS, ""
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
